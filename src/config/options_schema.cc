// docs/libvma.schema.json: what a file of VMA_CONFIG_JSON may say, as a JSON schema, from options.def.
#include <nlohmann/json.hpp>

#include "config/options.h"

namespace vma {
namespace {

using Json = nlohmann::ordered_json;

Json whole_number(const OptionRow& row) {
    return {{"type", "integer"}, {"minimum", row.min}, {"maximum", row.max}};
}

// Numbers and words that stand for the same.
Json choices_of(const OptionRow& row) {
    Json values = Json::array();
    for (const OptionChoice& c : option_choices(row)) {
        values.push_back(c.number);
        if (!c.text.starts_with('(') && !c.text.starts_with('[')) values.push_back(c.text);
    }
    return {{"enum", values}};
}

Json value_of(const OptionRow& row) {
    switch (row.kind) {
        case OptionKind::boolean:
            return {{"enum", {true, false, 1, 0}}};
        case OptionKind::integer:
        case OptionKind::uinteger:
        case OptionKind::power_of_two:
            return whole_number(row);
        case OptionKind::uinteger_or_0:
            return {{"anyOf", {{{"const", 0}}, whole_number(row)}}};
        case OptionKind::choice:
            return choices_of(row);
        case OptionKind::level:
        case OptionKind::spec:
            return {{"type", {"string", "integer"}}};
        case OptionKind::pointer:
            return {{"type", "string"}, {"pattern", "^(0[xX])?[0-9a-fA-F]+$"}};
        case OptionKind::ipv4:
            return {{"type", "string"}, {"format", "ipv4"}};
        default:
            return {{"type", "string"}, {"maxLength", row.max}};
    }
}

}  // namespace

std::string options_schema() {
    Json properties = {{"$schema", {{"type", "string"}}}};
    for (const OptionRow& row : option_rows()) {
        if (row.id == Opt::config_json) continue;
        Json property = {
            {"description", fmt::format("{} Values: {}.", row.help, option_range(row))}};
        property.update(value_of(row));
        properties[row.name] = property;
    }
    const Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                         {"title", "Settings of libvma (VMA_CONFIG_JSON)"},
                         {"type", "object"},
                         {"additionalProperties", false},
                         {"properties", properties}};
    return schema.dump(2) + "\n";
}

}  // namespace vma
