# Counting tests: sourced by the scripts that run them. Programs print TAP lines; `finish` prints
# "N passed, N failed[, N skipped]" as the last line and returns 1 if any failed.
# environment: TEST_TIMEOUT (900 seconds for one test program: test_replay took 497 on two busy cores), TEST_JOBS (programs at a
# time: one more than there are processors, since some wait)

test_timeout=${TEST_TIMEOUT:-900}
test_jobs=${TEST_JOBS:-$(($(getconf _NPROCESSORS_ONLN) + 1))}
work=$(mktemp -d)
results=$work/results # one line "passed failed skipped" per test program
: >"$results"
seconds_file=$work/seconds # one line "seconds title" per program: run_programs begins one for each build
: >"$work/costs"    # one line "seconds-of-processors title"
: >"$work/failures" # one line "failed: title: test"
: >"$work/builds"   # those whose programs were run
tap_number=0

# A pipe holds one line for every program that may still be started.
mkfifo "$work/slots"
exec 9<>"$work/slots"
seq "$test_jobs" >&9

stop_taps() {
    for file in "$work"/pid.*; do
        [ ! -e "$file" ] || kill "$(cat "$file")" 2>/dev/null || true
    done
}
trap 'rm -rf "$work"' EXIT
trap 'stop_taps; exit 130' INT TERM HUP

# Runs one test program that prints TAP lines ("ok ...", "not ok ...", "... # SKIP"), counts them, and shows what failed.
# A program that dies, times out or reports nothing is itself one failed test.
count_tap() { # number, title, command...
    output=$work/output.$1 errors=$work/errors.$1 pid=$work/pid.$1 title=$2
    shift 2
    started=$(date +%s)
    status=0
    # a shell starts programs in the background with SIGINT and SIGQUIT ignored, and some tests are about them
    timeout -k 10 "$test_timeout" env --default-signal=INT,QUIT "$@" >"$output" 2>"$errors" </dev/null 9>&- &
    echo $! >"$pid"
    wait $! || status=$?
    times >"$output.times"
    rm -f "$pid"
    seconds=$(($(date +%s) - started))
    echo "$seconds $title" >>"$seconds_file"
    # What children have used so far is the second line, "0m1.25s 0m0.50s": this shell has waited for no other.
    cost=$(awk -F '[ms ]+' 'NR == 2 { printf "%.1f", 60 * ($1 + $3) + $2 + $4 }' "$output.times")
    echo "$cost $title" >>"$work/costs"
    skipped=$(grep -c -i -E '^(not )?ok\b.*# skip' "$output" || true)
    failed=$(grep -i -v '# skip' "$output" | grep -c '^not ok\b' || true)
    passed=$(grep -i -v '# skip' "$output" | grep -c '^ok\b' || true)
    broken=""
    if [ "$status" -ne 0 ] && [ "$failed" -eq 0 ]; then
        failed=1
        broken="ended with status $status after $passed passed tests"
        [ "$status" -eq 124 ] && broken="timed out after $test_timeout seconds"
    elif [ $((passed + failed + skipped)) -eq 0 ]; then
        failed=1
        broken="reported no test"
    fi
    line="$title: $passed passed"
    [ "$failed" -eq 0 ] || line="$line, $failed failed"
    [ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
    {
        echo "$line ($seconds s, $cost s of processors)"
        if [ "$failed" -ne 0 ]; then
            { grep '^not ok\b' "$output" || echo "$broken"; } | sed "s|^|failed: $title: |" >>"$work/failures"
            [ -z "$broken" ] || echo "  $broken"
            { grep -A12 '^not ok\b' "$output" || tail -n 20 "$output"; } | sed 's/^/  /'
            tail -n 40 "$errors" | sed 's/^/  /'
        fi
    } >"$output.shown"
    cat "$output.shown" # at once, so that programs that end together do not mix their lines
    echo "$passed $failed $skipped" >>"$results"
    rm -f "$output" "$output.shown" "$output.times" "$errors"
}

# Runs a test program as soon as fewer than $test_jobs are running; wait_taps waits for all of them.
start_tap() { # title, command...
    read -r _ <&9
    tap_number=$((tap_number + 1))
    {
        count_tap "$tap_number" "$@"
        echo >&9
    } &
}
wait_taps() { wait; }

run_tap() { # title, command...
    start_tap "$@"
    wait_taps
}

# A step that either works or is one failed test: compiling a variant, for example. It takes the place of one program, beside the
# last of those that were started before.
run_step() { # title, command...
    title=$1
    shift
    read -r _ <&9
    started=$(date +%s)
    status=0
    "$@" >"$work/output" 2>&1 || status=$?
    echo >&9
    if [ "$status" -eq 0 ]; then
        echo "$title: done ($(($(date +%s) - started)) s)"
        return 0
    fi
    echo "0 1 0" >>"$results"
    echo "failed: $title" >>"$work/failures"
    echo "$title: failed"
    tail -n 40 "$work/output" | sed 's/^/  /'
    return 1
}

skip() { # title, reason
    echo "0 0 1" >>"$results"
    echo "$1: skipped ($2)"
}

# Runs unit tests and scripts, several at a time. Those that took longest the last time, or in tools/test_seconds, come first, so
# that none of them is left alone at the end. A unit test is titled by its name, a script by its folder, too: cli/test_run.
# The last of them run on beside what is started next, a build or other programs, until wait_taps or finish.
run_programs() { # build directory, suffix of the titles; paths on stdin
    [ -e "$1/test_seconds" ] || : >"$1/test_seconds"
    awk 'FILENAME != "-" { seconds[$2] = $1; next }
         { title = $0; sub(/\.sh$/, "", title) ? sub(/^tests\//, "", title) : sub(/.*\//, "", title)
           print (title in seconds ? seconds[title] : 1000) "\t" title "\t" $0 }' \
        tools/test_seconds "$1/test_seconds" - | sort -s -n -r >"$work/programs"
    seconds_file=$1/test_seconds.new
    : >"$seconds_file"
    echo "$1" >>"$work/builds"
    while read -r _ title program; do
        case $program in
        *.sh) KAKEYA=$1/kakeya BUILD=$1 start_tap "$title$2" sh "$program" ;;
        *) CMOCKA_MESSAGE_OUTPUT=TAP start_tap "$title$2" "$program" ;;
        esac
    done <"$work/programs"
    seconds_file=$work/seconds
}

unit_tests() { # build directory: the paths of its unit tests
    for program in "$1"/tests/test_*; do
        [ ! -x "$program" ] || echo "$program"
    done
}

# What the programs that ran cost, and which cost most.
show_costs() { # how many
    wait_taps
    sort -rn "$work/costs" | head -n "$1" | sed 's/ / s of processors: /'
    awk '{ sum += $1 } END { printf "%.0f s of processors in all\n", sum }' "$work/costs"
}

# The failures once more, since a long run has scrolled them away, then the counts.
finish() {
    wait_taps
    while read -r directory; do mv "$directory/test_seconds.new" "$directory/test_seconds"; done <"$work/builds"
    cat "$work/failures"
    awk '{ p += $1; f += $2; s += $3 }
         END { printf "%d passed, %d failed", p, f; if (s) printf ", %d skipped", s; print ""; exit f || !p }' "$results"
}
