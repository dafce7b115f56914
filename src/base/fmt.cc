// The functions of {fmt}, compiled once: with FMT_HEADER_ONLY every file that writes text compiles them, 0.4 s each. Its shared
// library is no way: a preloaded library brings nothing into a program but itself.
#include <fmt/format-inl.h>

template char fmt::detail::decimal_point_impl(fmt::detail::locale_ref);
template fmt::detail::thousands_sep_result<char> fmt::detail::thousands_sep_impl(
    fmt::detail::locale_ref);
template fmt::detail::dragonbox::decimal_fp<float> fmt::detail::dragonbox::to_decimal(
    float) noexcept;
template fmt::detail::dragonbox::decimal_fp<double> fmt::detail::dragonbox::to_decimal(
    double) noexcept;
template void fmt::detail::buffer<char>::append(const char*, const char*);
template void fmt::detail::vformat_to(fmt::detail::buffer<char>&, fmt::string_view,
                                      fmt::basic_format_args<fmt::buffer_context<char>>,
                                      fmt::detail::locale_ref);
