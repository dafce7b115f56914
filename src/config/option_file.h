// Settings out of a JSON file (VMA_CONFIG_JSON): one object, whose keys are names of variables and whose values are what these
// variables would say. docs/libvma.schema.json describes it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "config/options.h"

namespace vma {

enum class SettingType : uint8_t { number, boolean, text };

// One member of the object. `value` is what the environment would have; `place` is "FILE:LINE" for messages.
struct Setting {
    std::string name, value, place;
    SettingType type;
};

struct OptionFile {
    std::vector<Setting> settings;
    std::vector<Note> notes;
};

// Of a file with an error nothing is used.
OptionFile read_option_file(std::string_view text, const std::string& file);

// May a value of this type stand for the variable?
bool setting_fits(const OptionRow&, SettingType);
const char* setting_wanted(const OptionRow&);  // "a number"

}  // namespace vma
