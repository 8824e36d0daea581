// The look and the behaviour of report.html: private to report.
#pragma once

namespace titan {

extern const char* const kPageStyle;   // CSS
extern const char* const kPageScript;  // JavaScript; the page is complete without it
inline constexpr int kPageColours = 8;

}  // namespace titan
