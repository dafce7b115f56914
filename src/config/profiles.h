// VMA_SPEC profiles and the SOCKETXTREME presets: assignments made before the explicit variables.
#pragma once

#include "config/options.h"

namespace vma {

// One assignment of a profile. text is for the fields that are no numbers, else null.
struct Preset {
    Spec spec;
    Opt option;
    int64_t number;
    const char* text = nullptr;
};
std::span<const Preset>
profile_presets();  // all listed profiles; Spec::vma is computed from options.def

void apply_profile(Options&, Spec);
void apply_socketxtreme(Options&);

}  // namespace vma
