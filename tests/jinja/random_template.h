// Chat templates made at random from Jinja's grammar: every operator, test, filter, method and statement that
// src/text/chat_jinja*.cpp knows, with operands of the right type or, in wild ones, of any type and size.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "support/random_sequence.h"

namespace titan::test {

/// %t, %n, %r, %s, %i, %d, %b and %a stand for a text, a whole number, a real one, a list of texts, one of numbers, a
/// dictionary, a boolean and anything; %B for statements.
struct Form {
  char makes;  // one of these letters; a space for a statement
  const char* source;
};

inline constexpr std::array kForms{
    // Operators.
    Form{'n', "(%n + %n) %% 997"},
    Form{'n', "(%n - %n)"},
    Form{'n', "(%n * %n) %% 997"},
    Form{'r', "%n / 7"},
    Form{'n', "%n // 3"},
    Form{'n', "%n %% -5"},
    Form{'n', "(%n %% 9) ** 3"},
    Form{'r', "(%r + %r)"},
    Form{'r', "(%r - %n)"},
    Form{'r', "(%r * 0.5)"},
    Form{'r', "(%r // 0.5)"},
    Form{'r', "(%r %% 1.5)"},
    Form{'n', "-%n"},
    Form{'n', "+%n"},
    Form{'t', "(%t + %t)"},
    Form{'t', "%a ~ %a"},
    Form{'t', "%t * 3"},
    Form{'s', "(%s + %s)"},
    Form{'i', "%i * 2"},
    Form{'b', "(%n < %n <= %n)"},
    Form{'b', "(%n > %r >= %n)"},
    Form{'b', "(%t < %t)"},
    Form{'b', "(%a == %a)"},
    Form{'b', "(%a != %a)"},
    Form{'b', "(%t in %t)"},
    Form{'b', "(%a not in %s)"},
    Form{'b', "(%t in %d)"},
    Form{'b', "(not %a)"},
    Form{'a', "(%a and %a)"},
    Form{'a', "(%a or %a)"},
    Form{'a', "(%a if %b else %a)"},
    Form{'t', "%t[1:]"},
    Form{'t', "%t[::-2]"},
    Form{'s', "%s[%n:%n]"},
    Form{'i', "%i[-3::2]"},
    Form{'a', "%i[0]"},
    Form{'a', "%t[-1]"},
    Form{'a', "%d['a']"},
    Form{'a', "%d.b"},
    Form{'a', "(%a, %a)"},
    Form{'d', "{'a': %n, 'b': %n}"},
    Form{'a', "{%n: %a, none: 1, 1.5: 2}"},
    Form{'s', "[%t, %t]"},
    Form{'i', "[%n, %n, %n]"},
    // Tests.
    Form{'b', "(%a is defined)"},
    Form{'b', "(%a is undefined)"},
    Form{'b', "(%a is none)"},
    Form{'b', "(%a is string)"},
    Form{'b', "(%a is boolean)"},
    Form{'b', "(%a is number)"},
    Form{'b', "(%a is integer)"},
    Form{'b', "(%a is float)"},
    Form{'b', "(%a is true)"},
    Form{'b', "(%a is false)"},
    Form{'b', "(%a is mapping)"},
    Form{'b', "(%a is iterable)"},
    Form{'b', "(%a is sequence)"},
    Form{'b', "(%a is callable)"},
    Form{'b', "(%n is odd)"},
    Form{'b', "(%n is even)"},
    Form{'b', "('aB' is lower)"},
    Form{'b', "('AB' is upper)"},
    Form{'b', "(%a is escaped)"},
    Form{'b', "(%t is filter)"},
    Form{'b', "(%t is test)"},
    Form{'b', "(%n is divisibleby 3)"},
    Form{'b', "(%a is in %i)"},
    Form{'b', "(%a is not sameas none)"},
    Form{'b', "(%a is eq %n)"},
    Form{'b', "(%a is equalto(%t))"},
    Form{'b', "(%a is ne 1)"},
    Form{'b', "(%n is lt 3)"},
    Form{'b', "(%n is lessthan 3)"},
    Form{'b', "(%n is le 3)"},
    Form{'b', "(%n is gt 3)"},
    Form{'b', "(%n is greaterthan 3)"},
    Form{'b', "(%n is ge 3)"},
    // Filters.
    Form{'n', "%n | abs"},
    Form{'a', "%i | batch(2, 0) | list"},
    Form{'t', "%t | capitalize"},
    Form{'t', "%t | center(30)"},
    Form{'n', "%s | count"},
    Form{'a', "nothing | d(%a)"},
    Form{'a', "%a | default(%t, true)"},
    Form{'a', "%d | dictsort"},
    Form{'a', "%d | dictsort(by='value', reverse=true)"},
    Form{'t', "(%t | e) ~ ''"},
    Form{'t', "(%t | escape) ~ ''"},
    Form{'a', "%i | first"},
    Form{'r', "%t | float(1.5)"},
    Form{'t', "(%t | forceescape) ~ ''"},
    Form{'t', "%t | indent(3, true)"},
    Form{'n', "%t | int(4)"},
    Form{'a', "%d | items | list"},
    Form{'t', "%s | join(%t)"},
    Form{'a', "%i | last"},
    Form{'n', "%t | length"},
    Form{'s', "%t | list"},
    Form{'t', "%t | lower"},
    Form{'s', "%s | map('upper') | list"},
    Form{'a', "[%d, %d] | map(attribute='a') | list"},
    Form{'n', "([1] + %i) | max"},
    Form{'n', "([1] + %i) | min"},
    Form{'i', "%i | reject('odd') | list"},
    Form{'i', "%i | select('gt', 2) | list"},
    Form{'a', "[%d, %d] | selectattr('a', 'ge', 2) | list"},
    Form{'a', "[%d] | rejectattr('b') | list"},
    Form{'t', "%t | replace(%t, %t)"},
    Form{'s', "%s | reverse | list"},
    Form{'r', "%r | round(1)"},
    Form{'t', "%t | safe ~ %t"},
    Form{'i', "%i | sort"},
    Form{'a', "[%d, %d] | sort(attribute='b', reverse=true)"},
    Form{'t', "%a | string"},
    Form{'n', "%i | sum"},
    Form{'t', "%t | title"},
    Form{'t', "%d | tojson"},
    Form{'t', "[%d, %t, %r] | tojson(indent=2, sort_keys=true)"},
    Form{'t', "%t | tojson(ensure_ascii=true)"},
    Form{'t', "%t | trim"},
    Form{'t', "%t | trim('ab')"},
    Form{'a', "%i | unique | list"},
    Form{'t', "%t | upper"},
    // Methods and functions.
    Form{'t', "%t.strip()"},
    Form{'t', "%t.lstrip('a ')"},
    Form{'t', "%t.rstrip()"},
    Form{'s', "%t.split()"},
    Form{'s', "%t.split(' ', 2)"},
    Form{'s', "%t.rsplit('a', 1)"},
    Form{'s', "%t.splitlines()"},
    Form{'t', "%t.replace('a', %t, 2)"},
    Form{'b', "%t.startswith(('a', %t))"},
    Form{'b', "%t.endswith(%t)"},
    Form{'n', "%t.find(%t)"},
    Form{'n', "%t.rfind('a')"},
    Form{'n', "%t.count('a')"},
    Form{'t', "%t.join(%s)"},
    Form{'a', "%t.partition('a')"},
    Form{'a', "%t.rpartition('b')"},
    Form{'t', "%t.removeprefix('a')"},
    Form{'t', "%t.removesuffix('b')"},
    Form{'t', "%t.center(9, '*')"},
    Form{'t', "%t.ljust(9)"},
    Form{'t', "%t.rjust(9)"},
    Form{'b', "'a1'.isdigit()"},
    Form{'b', "'a1'.isalnum()"},
    Form{'t', "%t.title()"},
    Form{'a', "%d.get(%t, %a)"},
    Form{'a', "%d.items()"},
    Form{'a', "%d.keys() | list"},
    Form{'a', "%d.values()"},
    Form{'d', "%d.copy()"},
    Form{'n', "%s.count(%t)"},
    Form{'n', "(%i + [7]).index(7)"},
    Form{'d', "dict(%d, a=%n)"},
    Form{'i', "range(5) | list"},
    Form{'a', "range(9, -9, -2)"},
    Form{'t', "strftime_now('%%Y %%d')"},
    Form{'a', "namespace(a=%a).a"},
    Form{'t', "messages[0].content"},
    Form{'a', "messages | map(attribute='role') | list"},
    // Statements.
    Form{' ', "{% for x in %s if x %}%B{{ loop.index }}{% else %}%B{% endfor %}"},
    Form{' ', "{% for x in %i %}{{ loop.cycle(1, 2) }}{{ loop.revindex }}{% if loop.last %}%B{% endif %}{% endfor %}"},
    Form{' ', "{% for k, v in %d.items() %}{{ k }}{{ v }}%B{% endfor %}"},
    Form{' ', "{% for x in %i recursive %}{% if loop.depth < 3 %}{{ loop([1, 2]) }}{% endif %}{% endfor %}"},
    Form{' ', "{% for x in %s %}{% if x %}{% continue %}{% endif %}{% break %}{% endfor %}"},
    Form{' ', "{% if %b %}%B{% elif %a %}%B{% else %}%B{% endif %}"},
    Form{' ', "{% set x = %a %}"},
    Form{' ', "{% set x, y = %a, %t %}{{ y }}"},
    Form{' ', "{% set x %}%B{% endset %}"},
    Form{' ', "{% set x | upper | trim %}%t{% endset %}"},
    Form{' ', "{% set ns.a = %a %}{{ ns.a is defined }}"},
    Form{' ', "{% filter indent(2) %}%B{% endfilter %}"},
    Form{' ', "{% with x = %a, y = %t %}%B{{ y }}{% endwith %}"},
    Form{' ', "{% generation %}%B{% endgeneration %}"},
    Form{' ', "{% raw %}{{ x }}{% endraw %}"},
    Form{' ', "{% macro f(x, y=%n) %}{{ x }}{{ y }}{{ varargs | length }}%B{% endmacro %}{{ f(%a) }}{{ f(1, 2, 3) }}"},
    Form{' ', "{% macro g() %}[{{ caller(%a) }}]{% endmacro %}{% call(x) g() %}%B{% endcall %}"},
    Form{' ', "{# %a #}{%- if %b -%} a {%- endif %}"},
};

class RandomTemplate {
 public:
  /// `first`: the place in kForms of the forms that it surely has, one after the other.
  RandomTemplate(uint64_t seed, size_t first, size_t count) : random_(seed), wild_(random_.below(10) < 3) {
    source_ = "{% set ns = namespace(a=1) %}{% set x = 'x' %}";
    for (size_t i = 0; i < count; ++i) {
      const Form& form = kForms[(first + i) % kForms.size()];
      const std::string text = filled(form.source, 2);
      source_ += form.makes == ' ' ? text : "{{ " + text + " }}";
    }
    // One runs until its budget is spent, as long as a hundred other templates: few of them, so that many templates
    // end.
    if (wild_ && random_.below(16) == 0) source_ += extreme();
  }

  const std::string& source() const { return source_; }
  bool is_wild() const { return wild_; }

 private:
  std::string filled(std::string_view form, int depth) {
    std::string text;
    for (size_t i = 0; i < form.size(); ++i) {
      const char next = i + 1 < form.size() ? form[i + 1] : ' ';
      if (form[i] != '%' || std::string_view("tnrsidbaB%").find(next) == std::string_view::npos) {
        text += form[i];
        continue;
      }
      ++i;
      text += next == '%' ? "%" : next == 'B' ? statements(depth - 1) : expression(next, depth - 1);
    }
    return text;
  }

  std::string expression(char makes, int depth) {
    if (makes == 'a' || (wild_ && random_.below(8) == 0)) makes = "tnrsidb"[random_.below(7)];
    if (depth <= 0 || random_.below(3) == 0) return leaf(makes);
    for (int tries = 0; tries < 40; ++tries) {
      const Form& form = kForms[random_.below(kForms.size())];
      if (form.makes == makes) return "(" + filled(form.source, depth) + ")";
    }
    return leaf(makes);
  }

  std::string statements(int depth) {
    if (depth <= 0) return "{{ " + expression('a', 1) + " }}";
    for (;;) {
      const Form& form = kForms[random_.below(kForms.size())];
      if (form.makes == ' ') return filled(form.source, depth);
    }
  }

  std::string leaf(char makes) {
    static constexpr std::array kTexts{"''",      "'a'",      "'b a\\n ab'", "'\\u00e9 \\U0001F98A'",
                                       "'<&\"x'", "\"it's\"", "'12'",        "'upper'"};
    static constexpr std::array kWild{"9223372036854775807",
                                      "(-9223372036854775807 - 1)",
                                      "1e308",
                                      "nothing",
                                      "none",
                                      "-1",
                                      "messages",
                                      "range",
                                      "''",
                                      "[]",
                                      "{}",
                                      "range(1000)",
                                      "'x' * 9999"};
    if (wild_ && random_.below(6) == 0) return kWild[random_.below(kWild.size())];
    switch (makes) {
      case 't':
        return random_.below(8) == 0 ? "messages[1].content" : kTexts[random_.below(kTexts.size())];
      case 'n':
        return std::to_string(random_.below(12));
      case 'r':
        return std::to_string(random_.below(100)) + ".25";
      case 's':
        return random_.below(3) == 0 ? "['b', 'A', '']" : "['x']";
      case 'i':
        return random_.below(3) == 0 ? "[]" : "[3, 1, 2, " + std::to_string(random_.below(9)) + "]";
      case 'd':
        return random_.below(3) == 0 ? "{'b': 1, 'a': 2}" : "{'a': 3, 'b': " + std::to_string(random_.below(9)) + "}";
      default:
        return random_.below(2) == 0 ? "true" : "false";
    }
  }

  /// What takes much of something.
  std::string extreme() {
    static constexpr std::array kExtremes{
        "{% for a in range(100000) %}{% for b in range(100000) %}{{ a }}{% endfor %}{% endfor %}",
        "{% set ns.a = [] %}{% for a in range(100000) %}{% set ns.a = [ns.a] %}{% endfor %}{{ ns.a == [ns.a] }}{{ ns.a "
        "}}",
        "{% set ns.a = [] %}{% for a in range(100000) %}{% set ns.a = ns.a + [range(100000)] %}{% endfor %}",
        "{% set ns.a = 'ab' %}{% for a in range(90) %}{% set ns.a = ns.a + ns.a %}{% endfor %}",
        "{% set ns.a = [1] %}{% for a in range(90) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a | tojson }}",
        "{% set ns.a = {} %}{% for a in range(100000) %}{% set ns.a = dict(ns.a, b=ns) %}{% endfor %}{{ ns }}",
        "{% macro f(x) %}{{ f([x]) }}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{% for x in range(9) %}{{ f() }}{% endfor %}{% endmacro %}{{ f() }}",
        "{{ [1, 2, 3][::9223372036854775807] }}{{ 'abc'[9223372036854775807::-9223372036854775807] }}",
        "{{ range(9223372036854775800, 9223372036854775807, 5) | list }}{{ range(0, -9223372036854775807, -1) }}",
        "{{ ('x' * 1000000) | replace('x', 'y' * 1000) }}",
        "{{ 'x'.center(9223372036854775807) }}",
        "{% set a = 'ab ' * 100000 %}{% for b in range(100000) %}{{ a.find('q') }}{{ a | length }}{% endfor %}",
        "{% set a = ('ab ' * 100000).split() %}{% for b in a %}{{ a | sort | first }}{% endfor %}",
        "{% for a in range(3000) %}{% for b in 'abc' * 3000 %}{% endfor %}{% endfor %}"};
    return kExtremes[random_.below(kExtremes.size())];
  }

  PhiloxSequence random_;
  bool wild_;
  std::string source_;
};

}  // namespace titan::test
