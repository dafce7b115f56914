#include "config/option_file.h"

#include <cstring>
#include <iterator>
#include <nlohmann/json.hpp>

namespace vma {
namespace {

constexpr size_t kShownTokenMax = 40;  // bytes of what is wrong that a message repeats

// The text, and on which line its reader is.
class LineCounter {
  public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = const char&;

    LineCounter(const char* at, unsigned* line) : at_(at), line_(line) {}
    reference operator*() const { return *at_; }
    LineCounter& operator++() {
        *line_ += *at_ == '\n';
        at_++;
        return *this;
    }
    LineCounter operator++(int) {
        LineCounter before = *this;
        ++*this;
        return before;
    }
    bool operator==(const LineCounter& o) const { return at_ == o.at_; }
    bool operator!=(const LineCounter& o) const { return at_ != o.at_; }

  private:
    const char* at_;
    unsigned* line_;
};

// Takes the members as the parser meets them. Returning false ends the parse: something is wrong, and said.
class Reader : public nlohmann::json_sax<nlohmann::json> {
  public:
    Reader(const std::string& file, const unsigned& line) : file_(file), line_(line) {}

    OptionFile out;

    bool key(string_t& name) override {
        name_ = name;
        place_ = here();
        return true;
    }
    bool boolean(bool v) override { return take(v ? "1" : "0", SettingType::boolean); }
    bool number_integer(number_integer_t v) override {
        return take(std::to_string(v), SettingType::number);
    }
    bool number_unsigned(number_unsigned_t v) override {
        return take(std::to_string(v), SettingType::number);
    }
    bool string(string_t& v) override {
        if (std::strlen(v.c_str()) != v.size()) return refuse("a text with a zero byte");
        return take(v, SettingType::text);
    }
    bool number_float(number_float_t, const string_t&) override {
        return refuse("a number that is not whole");
    }
    bool null() override { return refuse("null"); }
    bool binary(binary_t&) override { return refuse("binary data"); }
    bool start_array(std::size_t) override { return refuse("an array"); }
    bool end_array() override { return true; }
    bool start_object(std::size_t) override {
        if (inside_) return refuse("an object");
        inside_ = true;
        return true;
    }
    bool end_object() override { return true; }
    bool parse_error(std::size_t, const std::string& last,
                     const nlohmann::detail::exception&) override {
        return wrong(fmt::format("{}: no JSON at \"{}\"", here(),
                                 std::string_view(last).substr(0, kShownTokenMax)));
    }

  private:
    std::string here() const { return fmt::format("{}:{}", file_, line_); }

    bool take(std::string value, SettingType type) {
        if (!inside_) return refuse("a value");
        if (name_ == "$schema") return true;
        for (const Setting& before : out.settings)
            if (before.name == name_)
                return wrong(fmt::format("{}: {} is set again", place_, name_));
        out.settings.push_back({name_, std::move(value), place_, type});
        return true;
    }
    bool refuse(const char* what) {
        if (!inside_)
            return wrong(
                fmt::format("{}: {} where an object of variables is expected", here(), what));
        return wrong(fmt::format("{}: {}: {} where a number, a text, true or false is expected",
                                 place_, name_, what));
    }
    bool wrong(const std::string& what) {
        out.settings.clear();
        out.notes.push_back(
            {LogLevel::warning, what + "; nothing of the file is used (VMA_CONFIG_JSON)"});
        return false;
    }

    const std::string& file_;
    const unsigned& line_;
    std::string name_, place_;
    bool inside_ = false;
};

bool is_number_kind(const OptionRow& row) {
    switch (row.kind) {
        case OptionKind::integer:
        case OptionKind::uinteger:
        case OptionKind::uinteger_or_0:
        case OptionKind::power_of_two:
            return true;
        default:
            return false;
    }
}
// A word or a number.
bool is_named_kind(const OptionRow& row) {
    return row.kind == OptionKind::choice || row.kind == OptionKind::level ||
           row.kind == OptionKind::spec;
}

}  // namespace

OptionFile read_option_file(std::string_view text, const std::string& file) {
    unsigned line = 1;
    Reader reader(file, line);
    nlohmann::json::sax_parse(LineCounter(text.data(), &line),
                              LineCounter(text.data() + text.size(), &line), &reader);
    return std::move(reader.out);
}

bool setting_fits(const OptionRow& row, SettingType type) {
    if (row.kind == OptionKind::boolean) return type != SettingType::text;
    if (is_number_kind(row)) return type == SettingType::number;
    return type == SettingType::text || (is_named_kind(row) && type == SettingType::number);
}

const char* setting_wanted(const OptionRow& row) {
    if (row.kind == OptionKind::boolean) return "true or false";
    if (is_number_kind(row)) return "a number";
    return is_named_kind(row) ? "a number or a text" : "a text";
}

}  // namespace vma
