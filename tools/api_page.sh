#!/bin/sh
# Makes pages of the public headers with Doxygen: DIR/html/index.html. A warning of Doxygen's is a failure.
# usage: tools/api_page.sh DIR
set -eu

out=${1:?usage: tools/api_page.sh DIR}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out" "$work/include"
version=$(sed -n 's/^project(kakeya VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)

# The headers' comments are plain ones. One at the beginning of a line is for what follows it; one that stands after a member or a value,
# and the lines that it goes on in, for what is before it. The one at the top of a file is the file's.
for header in include/*.h; do
    awk '
        function escaped(text) { gsub(/[\\@#%<>]/, "\\\\&", text); return text }
        FNR == 1 && /^\/\*/ { sub(/^\/\*/, "/** @file\n *"); at = index($0, "\n"); $0 = substr($0, 1, at) escaped(substr($0, at + 1)) }
        FNR > 1 && inside { $0 = escaped($0) }
        FNR > 1 && !inside && (at = index($0, "/* ")) {
            code = substr($0, 1, at - 1)
            $0 = code (code ~ /[^ ]/ && code !~ /^#/ ? "/**< " : code ~ /^#/ ? "/* " : "/** ") escaped(substr($0, at + 3))
        }
        { print; inside = (inside || /\/\*/) && !/\*\/ *$/ }' "$header" >"$work/include/${header##*/}"
done

cat >"$work/Doxyfile" <<END
PROJECT_NAME = kakeya
PROJECT_NUMBER = $version
PROJECT_BRIEF = "the C interface"
INPUT = "$work/include"
STRIP_FROM_PATH = "$work/include"
OUTPUT_DIRECTORY = "$out"
OPTIMIZE_OUTPUT_FOR_C = YES
EXTRACT_ALL = YES
EXTRACT_STATIC = YES
JAVADOC_AUTOBRIEF = YES
AUTOLINK_SUPPORT = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = KAKEYA_API=
GENERATE_LATEX = NO
HAVE_DOT = NO
QUIET = YES
WARN_AS_ERROR = FAIL_ON_WARNINGS
END
doxygen "$work/Doxyfile"
