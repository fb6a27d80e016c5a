# kakeya verify: the page, the report that the gate passes, two processes, signatures, logits from elsewhere, and what is refused
# beforehand.
. tests/cli/common.sh

tiny=tests/data/golden/gemma4-tiny-moe
model=${KAKEYA_MODEL:-models/demo}

refuses "verify: an operand is refused" "unexpected 'x'" verify x
refuses "verify: --sign needs a report" "--sign needs --report" verify --sign key
refuses "verify: no time is no number of seconds" "--seconds: '0' is not an integer from 1" verify --seconds 0
refuses "verify: answers are long enough to be cut" "--max-tokens: '3' is not an integer from 4" verify --max-tokens 3
fails_with "verify: an unknown K/V format is named" "K/V format 'q5' is none of f32, bf16, q8, q4" verify --kv-formats bf16,q5 --rounds 1
fails_with "verify: an unknown policy is named" "policy 'exact' is none of" verify --policies exact --rounds 1
fails_with "verify: logits that are not there" "nowhere.safetensors" verify --logits "$WORK/nowhere.safetensors" --rounds 1
fails_with "verify: a key that cannot sign is known beforehand" "nokey" verify --report "$WORK/v.json" --sign "$WORK/nokey"

# --- the page and the report
mkdir "$WORK/tmp"
export TMPDIR="$WORK/tmp"
works "verify works" verify --model "$model" --rounds 1 --max-tokens 8 --kv-formats bf16,q8 --policies native --report "$WORK/v.json"
cp "$WORK/out" "$WORK/page"
check "the page says what was compared" sh -c 'for word in "the reference" "k + 1 rows" "prompt in pieces" forked truncated parked \
    "among other sessions" "other threads" "another process"; do grep -q "$word" "$1" || exit 1; done' - "$WORK/page"
check "and that nothing differs" grep -q 'nothing differs\.$' "$WORK/page"
check "and how many streams" grep -q -E '^52 streams, 416 tokens in ' "$WORK/page"
works "the gate passes its report" gate "$WORK/v.json"
cp "$WORK/v.json" "$WORK/out"
json_holds "both formats and both temperatures are in the rows" '
    ([.rows[].kv_format] | unique) == ["bf16", "q8"] and ([.rows[].temperature] | unique) == [0, 1] and
    ([.rows[].comparison] | unique | length) == 13 and .complete'
json_holds "the other process had other threads" '
    .options.threads_elsewhere != .environment.threads and
    ([.rows[] | select(.comparison == "saved" or .comparison == "threads") | .threads] | unique) == [.options.threads_elsewhere]'
check "no folder is left behind" sh -c '! ls -d "$1"/kakeya-verify-* 2>/dev/null' - "$TMPDIR"
jq -c '.rows |= map(if .comparison == "parked" then .token_ids[2] = 7 else . end)' "$WORK/v.json" >"$WORK/forged.json"
run gate "$WORK/forged.json"
check "a forged one is refused" sh -c 'test "$1" -eq 1 && grep -q "\[LOSSLESS\]" "$2"' - "$STATUS" "$WORK/out"

# --- a model without tokenizer, policies that evict, float32
works "a model without tokenizer" verify --model "$tiny" --rounds 2 --max-tokens 4 --precision f32 --threads 1 --json
json_holds "has streams as well" '.kind == "kakeya.verify" and .summary.differ == 0 and .summary.streams >= 96'

# --- signatures
if command -v ssh-keygen >/dev/null && ssh-keygen -q -t ed25519 -N '' -C test -f "$WORK/key" 2>/dev/null; then
    works "a signed report" verify --model "$tiny" --rounds 1 --max-tokens 4 --threads 1 --report "$WORK/s.json" --sign "$WORK/key"
    check "has a signature beside it" test -s "$WORK/s.json.sig"
    printf 'anna namespaces="kakeya-remote@v1" %s\n' "$(cut -d ' ' -f 1,2 "$WORK/key.pub")" >"$WORK/signers"
    works "which the gate finds" gate "$WORK/s.json" --signers "$WORK/signers"
    check "and says whose it is" grep -q 'signed by anna' "$WORK/out"
    cp "$WORK/s.json.sig" "$WORK/v.json.sig"
    run gate "$WORK/v.json" --signers "$WORK/signers"
    check "of other bytes it is refused" sh -c 'test "$1" -eq 1 && grep -q "\[SIGNATURE\]" "$2"' - "$STATUS" "$WORK/out"
    rm "$WORK/s.json.sig"
    run gate "$WORK/s.json" --signers "$WORK/signers"
    check "and so is a report without one" sh -c 'test "$1" -eq 1 && grep -q "\[SIGNATURE\]" "$2"' - "$STATUS" "$WORK/out"
else
    skip "signatures" "no ssh-keygen"
fi

# --- logits from elsewhere: a file of ids and logits as bench/transformers_compare.py writes it
if command -v python3 >/dev/null; then
    echo '[2,36,18,297,77,257,289,87,152,11,12,13,14,15,16,17]' >"$WORK/ids.json"
    works "logits of a model" score --model "$tiny" --precision f32 --ids-file "$WORK/ids.json" --out "$WORK/logits.safetensors"
    cat >"$WORK/with_ids.py" <<'END'
import json, struct, sys
logits, ids_file, out, negated = sys.argv[1:5]
data = open(logits, "rb").read()
length = struct.unpack("<Q", data[:8])[0]
header, body = json.loads(data[8:8 + length]), bytearray(data[8 + length:])
ids = json.load(open(ids_file))
if negated == "negated":
    for at in range(3, len(body), 4):
        body[at] ^= 0x80
body += struct.pack("<%dq" % len(ids), *ids)
header["ids"] = {"dtype": "I64", "shape": [len(ids)], "data_offsets": [len(body) - 8 * len(ids), len(body)]}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
open(out, "wb").write(struct.pack("<Q", len(text)) + text + bytes(body))
END
    python3 "$WORK/with_ids.py" "$WORK/logits.safetensors" "$WORK/ids.json" "$WORK/theirs.safetensors" same
    python3 "$WORK/with_ids.py" "$WORK/logits.safetensors" "$WORK/ids.json" "$WORK/others.safetensors" negated
    works "verify --logits works" verify --model "$tiny" --precision f32 --threads 1 --rounds 1 --max-tokens 4 \
        --logits "$WORK/theirs.safetensors" --report "$WORK/l.json"
    check "the page says how far they are" grep -q 'over 15 rows the mean divergence is .*the same in 100.0 %\.$' "$WORK/out"
    works "the gate passes the report" gate "$WORK/l.json"
    run verify --model "$tiny" --precision f32 --threads 1 --rounds 1 --max-tokens 4 --logits "$WORK/others.safetensors" \
        --report "$WORK/l.json"
    check "logits of other weights fail" sh -c 'test "$1" -eq 1 && grep -q "OTHER WEIGHTS" "$2"' - "$STATUS" "$WORK/out"
    run gate "$WORK/l.json"
    check "and the gate refuses them" sh -c 'test "$1" -eq 1 && grep -q "\[LOGITS\]" "$2"' - "$STATUS" "$WORK/out"
    fails_with "logits without ids are refused" 'no tensor "ids"' verify --model "$tiny" --rounds 1 --logits "$WORK/logits.safetensors"
else
    skip "logits from elsewhere" "no python3"
fi

finish
