/* Rules of `eval mac-acceptance`: every verdict from the numbers in the report, and its parts as reports of their own.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "measure/gate.h"
#include "measure/mac.h"

/* Logits of one text under both backends. In float32 only the order of sums differs; in bf16 what enters a product is
 * rounded, and a value that lies between two numbers of bf16 falls to either side. */
static const double f32_difference = 1e-2, f32_divergence = 1e-4, bf16_divergence = 2e-2, bf16_agreement = 0.9;
/* What allocators round up, beside what is counted. */
static const double rounding_share = 0.02, rounding_bytes = 32 << 20;
/* Bytes a second that no memory gives. What the report measured itself is no bound: a probe may have been disturbed. */
static const double most_bytes_per_second = 4e12;

static const cJSON *member(const cJSON *object, const char *name) {
    return cJSON_GetObjectItemCaseSensitive(object, name);
}

static double number(const cJSON *object, const char *name) {
    const cJSON *item = member(object, name);
    return cJSON_IsNumber(item) ? item->valuedouble : NAN;
}

static const char *text(const cJSON *object, const char *name) {
    const cJSON *item = member(object, name);
    return cJSON_IsString(item) ? item->valuestring : "";
}

static bool is_f32(const gate_context *c) { return strcmp(text(c->environment, "precision"), "f32") == 0; }
static bool is_quick(const gate_context *c) { return cJSON_IsTrue(member(c->options, "quick")); }

/* So many tokens of the vocabulary. */
static bool are_tokens(const gate_context *c, const cJSON *ids) {
    const cJSON *id;
    bool good = cJSON_IsArray(ids) && cJSON_GetArraySize(ids) == MAC_GREEDY_TOKENS;
    cJSON_ArrayForEach(id, ids) good &= json_is_integer(id, 0, number(c->environment, "vocabulary") - 1);
    return good;
}

static void missing(gate_context *c, const char *part, int expected) {
    int found = cJSON_GetArraySize(member(c->report, part));
    gate_violate(c, "PART_MISSING", "\"%s\" holds %d entries, not %d: this part was not run whole", part, found,
                 expected);
}

/* Whether a part has as many entries as it should; counts them as rows. */
static bool has_entries(gate_context *c, const char *part, int expected) {
    if (!cJSON_IsArray(member(c->report, part)) || cJSON_GetArraySize(member(c->report, part)) != expected) {
        missing(c, part, expected);
        return false;
    }
    c->result->rows += (size_t)expected;
    return true;
}

/* --------------------------------------------------------------------------------------------- what it was run on */

static void check_device(gate_context *c) {
    const char *backend = text(c->environment, "backend");
    bool mac = strstr(text(c->environment, "os"), "Darwin") != NULL, gpu = strncmp(backend, "mlx/gpu", 7) == 0;
    if (strncmp(backend, "mlx/", 4) != 0)
        gate_violate(c, "BACKEND", "backend %.40s was run, not mlx", backend);
    else if (mac && !gpu)
        gate_violate(c, "METAL_UNUSED", "on a Mac backend %.40s was run, not its GPU", backend);
    else if (!gpu)
        gate_note(c, "made on MLX's CPU device: it says nothing of a Mac's GPU%s",
                  is_quick(c) ? "; quick: without lossless and niah" : "");
    else if (is_quick(c))
        gate_note(c, "quick: without lossless and niah");
}

static void check_self_check(gate_context *c) {
    const cJSON *row, *rows = member(c->report, "self_check");
    bool gpu = strncmp(text(c->environment, "backend"), "mlx/gpu", 7) == 0;
    if (!cJSON_IsArray(rows) || (gpu && !rows->child))
        gate_violate(c, "SELF_CHECK", "the backend has not told how it chose its kernels");
    cJSON_ArrayForEach(row, rows) {
        c->result->rows++;
        if (!cJSON_IsTrue(member(row, "first_choice")))
            gate_violate(c, "SELF_CHECK", "%.48s fell back to %.32s: %.96s", text(row, "operation"),
                         text(row, "chosen"), text(row, "reason"));
    }
}

/* -------------------------------------------------------------------------------------------------- the same tokens */

static void check_vectors(gate_context *c) {
    const cJSON *row;
    double divergence = 0;
    int index = 0, agreed = 0, all = MAC_PROMPT_TOKENS + MAC_DECODE_TOKENS - 1;
    if (!has_entries(c, "vectors", all)) return;
    cJSON_ArrayForEach(row, member(c->report, "vectors")) {
        double kl = number(row, "kl"), most = number(row, "largest_difference"), nll = number(row, "nll"),
               cpu = number(row, "cpu_nll");
        if (!(kl > -1e-6) || !(most >= 0) || !(nll >= 0) || !(cpu >= 0) || (int)number(row, "row") != index ||
            cJSON_IsTrue(member(row, "decoded")) != (index >= MAC_PROMPT_TOKENS))
            gate_violate(c, "VECTORS_FORM", "vectors[%d] is not a comparison of row %d", index, index);
        /* A token's log-probability is a logit less a smooth maximum of all: each moves by the largest difference. */
        else if (fabs(nll - cpu) > 2 * most + 1e-3 || kl > 2 * most + 1e-3)
            gate_violate(c, "VECTORS_FORM", "vectors[%d]: logits differ by %g at most, likelihoods by %g", index, most,
                         fabs(nll - cpu));
        else if (is_f32(c) && (most > f32_difference || kl > f32_divergence))
            gate_violate(c, "VECTORS",
                         "row %d differs from the CPU backend by %g (divergence %g); %g is allowed in f32", index, most,
                         kl, f32_difference);
        divergence += kl / all;
        agreed += cJSON_IsTrue(member(row, "same_choice"));
        index++;
    }
    if (!(divergence <= bf16_divergence) || agreed < bf16_agreement * all)
        gate_violate(c, "VECTORS", "mean divergence %g from the CPU backend, the same choice in %d of %d rows",
                     divergence, agreed, all);
}

static void check_streams(gate_context *c) {
    bool drafter = cJSON_IsTrue(member(c->environment, "drafter"));
    const cJSON *policies = member(c->options, "policies"), *stream, *first = NULL;
    int expected[2 * MAC_STREAMS], n = 0, index = 0;
    double drafted = 0;
    for (int s = 0; s < 2 * MAC_STREAMS; s++)
        if (drafter || !mac_streams[s % MAC_STREAMS].drafter) expected[n++] = s;
    if (!has_entries(c, "streams", n)) return;
    cJSON_ArrayForEach(stream, member(c->report, "streams")) {
        const mac_stream *how = &mac_streams[expected[index] % MAC_STREAMS];
        const char *policy = text(stream, "policy"), *mode = text(stream, "mode");
        const cJSON *named = cJSON_GetArrayItem(policies, expected[index] / MAC_STREAMS);
        if (!cJSON_IsString(named) || strcmp(policy, named->valuestring) != 0 || strcmp(mode, how->mode) != 0 ||
            (int)number(stream, "draft_length") != how->draft_length ||
            (int)number(stream, "prompt_chunk") != how->prompt_chunk || !are_tokens(c, member(stream, "token_ids")) ||
            !(number(stream, "accepted_tokens") <= number(stream, "drafted_tokens")) ||
            !(number(stream, "verifier_forwards") + number(stream, "accepted_tokens") >= MAC_GREEDY_TOKENS - 1)) {
            gate_violate(c, "STREAMS_FORM", "streams[%d] is not the run that is expected there", index);
            return;
        }
        if (expected[index] % MAC_STREAMS == 0) first = member(stream, "token_ids");
        if (!cJSON_Compare(first, member(stream, "token_ids"), true))
            gate_violate(c, "LOSSLESS", "%.20s, %.20s, drafts of %d, chunks of %d: other tokens than one by one",
                         policy, mode, how->draft_length, how->prompt_chunk);
        if (strcmp(mode, "speculative") == 0) drafted += number(stream, "drafted_tokens");
        index++;
    }
    if (drafter && !(drafted > 0)) gate_violate(c, "SPECULATION_INACTIVE", "no token was drafted");
    const cJSON *cpu = member(c->report, "cpu_token_ids"),
                *device = member(cJSON_GetArrayItem(member(c->report, "streams"), 0), "token_ids");
    if (!are_tokens(c, cpu))
        gate_violate(c, "PART_MISSING", "no greedy answer of the CPU backend");
    else if (is_f32(c) && !cJSON_Compare(cpu, device, true))
        gate_violate(c, "GREEDY", "the greedy answer is not the CPU backend's, in f32");
}

static void check_moved(gate_context *c) {
    const cJSON *session;
    int index = 0;
    if (!has_entries(c, "moved_sessions", 4)) return;
    cJSON_ArrayForEach(session, member(c->report, "moved_sessions")) {
        const char *from = text(session, "from"), *digest = text(session, "digest"), *policy = text(session, "policy");
        const cJSON *home = member(session, "token_ids"), *there = member(session, "token_ids_there"),
                    *named = cJSON_GetArrayItem(member(c->options, "policies"), index % 2);
        if (strcmp(from, index < 2 ? "cpu" : "mlx") != 0 || strlen(digest) != 16 || !(number(session, "bytes") > 0) ||
            !cJSON_IsString(named) || strcmp(policy, named->valuestring) != 0 || !are_tokens(c, home) ||
            !are_tokens(c, there))
            gate_violate(c, "MOVED_FORM", "moved_sessions[%d] is not the session that is expected there", index);
        else if (strcmp(digest, text(session, "digest_there")) != 0)
            gate_violate(c, "MOVED", "a session from %s under %.20s holds other bytes on the other backend", from,
                         policy);
        else if (is_f32(c) && !cJSON_Compare(home, there, true))
            gate_violate(c, "MOVED",
                         "a session from %s under %.20s goes on with other tokens on the other backend, in f32", from,
                         policy);
        index++;
    }
}

/* ------------------------------------------------------------------------------------------------- memory and speed */

/* Whether a session of so many tokens holds these bytes; the newest token may not be committed yet. */
static bool is_formula(const gate_context *c, const eval_arm *arm, int tokens, const cJSON *kv) {
    for (int back = 0; back < 2; back++) {
        backend_cache_bytes b = kv_geometry_bytes(&c->geometry, arm, tokens - back);
        const double parts[] = {(double)b.full, (double)b.sliding, (double)b.latent, (double)b.draft, (double)b.total};
        static const char *const names[] = {"full", "sliding", "latent", "draft", "total"};
        bool equal = true;
        for (int i = 0; i < 5; i++) equal &= !(fabs(number(kv, names[i]) - parts[i]) > 0);
        if (equal) return true;
    }
    return false;
}

static void check_memory(gate_context *c) {
    const cJSON *row, *policy = cJSON_GetArrayItem(member(c->options, "policies"), 1);
    eval_arm arm = {.sink = gate_option(c, "sink"),
                    .window = gate_option(c, "window"),
                    .draft_window = gate_option(c, "draft_window"),
                    .mix_alpha = -1};
    int asked = gate_option(c, "memory_tokens"), step = 0, beyond = 0;
    double sliding = NAN, over_first = NAN;
    if (!has_entries(c, "memory", MAC_MEMORY_STEPS) || !c->has_geometry || !cJSON_IsString(policy)) return;
    snprintf(arm.policy, sizeof arm.policy, "%s", policy->valuestring);
    snprintf(arm.mode, sizeof arm.mode, "auto");
    int own = c->geometry.verifier.sliding_window, kept = arm.sink + arm.window, bounded = own > kept ? own : kept;
    cJSON_ArrayForEach(row, member(c->report, "memory")) {
        const cJSON *kv = member(row, "kv_bytes");
        int tokens = asked * ++step / MAC_MEMORY_STEPS + MAC_STEP_TOKENS;
        double counted = number(row, "weights") + number(row, "workspace") + number(kv, "total"),
               held = number(row, "device_held");
        if ((int)number(row, "tokens") != tokens || !(counted > 0) || !(held >= 0) ||
            !(number(row, "device_most") >= 0)) {
            gate_violate(c, "MEMORY_FORM", "memory[%d] is not the session after %d tokens", step - 1, tokens);
            return;
        }
        if (!is_formula(c, &arm, tokens, kv))
            gate_violate(c, "KV_FORMULA", "after %d tokens a session holds other bytes than the model's sizes give",
                         tokens);
        if (held > counted * (1 + rounding_share) + rounding_bytes)
            gate_violate(c, "MEMORY_UNCOUNTED", "after %d tokens libmlx holds %.0f bytes, of which %.0f are counted",
                         tokens, held, counted);
        if (tokens <= bounded + 64) continue;
        if (++beyond == 1) {
            sliding = number(kv, "sliding") + number(kv, "latent");
            over_first = held - counted;
        }
        if (!(fabs(number(kv, "sliding") + number(kv, "latent") - sliding) <= 0))
            gate_violate(c, "MEMORY_GROWS", "sliding layers hold %.0f bytes after %d tokens, %.0f before",
                         number(kv, "sliding") + number(kv, "latent"), tokens, sliding);
        if (held - counted > over_first + rounding_bytes / 4)
            gate_violate(c, "MEMORY_GROWS", "libmlx holds %.0f bytes that are not counted after %d tokens, %.0f before",
                         held - counted, tokens, over_first);
    }
    if (beyond < 2) gate_violate(c, "MEMORY_UNPROVEN", "the session is hardly longer than %d positions", bounded);
}

static bool is_spread(const cJSON *spread) {
    double low = number(spread, "low"), median = number(spread, "median"), high = number(spread, "high");
    return low > 0 && low <= median && median <= high;
}

static void check_speed(gate_context *c) {
    const cJSON *speed = member(c->report, "speed"), *row;
    int contexts = is_quick(c) ? 1 : 2, verified = is_quick(c) ? 2 : 5, index = 0;
    int expected = contexts * (2 + verified + (cJSON_IsTrue(member(c->environment, "drafter")) ? 1 : 0));
    if (!is_spread(member(speed, "read_bytes_per_second")) || !is_spread(member(speed, "flops_per_second")) ||
        cJSON_GetArraySize(member(speed, "rows")) != expected) {
        gate_violate(c, "PART_MISSING", "\"speed\" holds %d rows, not %d", cJSON_GetArraySize(member(speed, "rows")),
                     expected);
        return;
    }
    cJSON_ArrayForEach(row, member(speed, "rows")) {
        const cJSON *seconds = member(row, "seconds"), *bound = member(row, "bound_seconds"),
                    *share = member(row, "share");
        if (!is_spread(seconds) || !is_spread(bound) || !is_spread(share) || !(number(row, "bytes") > 0))
            gate_violate(c, "SPEED_FORM", "speed.rows[%d] lacks a time, a bound or its share", index);
        else if (number(share, "low") < number(bound, "low") / number(seconds, "high") * 0.99 ||
                 number(share, "high") > number(bound, "high") / number(seconds, "low") * 1.01)
            gate_violate(c, "SPEED_FORM", "speed.rows[%d]: its share is not its bound by its time", index);
        else if (number(row, "bytes") > most_bytes_per_second * number(seconds, "low"))
            gate_violate(c, "SPEED_IMPOSSIBLE", "speed.rows[%d] (%.10s): %g bytes in %g seconds", index,
                         text(row, "what"), number(row, "bytes"), number(seconds, "low"));
        c->result->rows++;
        index++;
    }
}

/* ------------------------------------------------------------------------------------------------------ the whole */

/* What a part says of itself; gate.c judges the rest of it as a report of its own. */
static void check_part(gate_context *c, const char *name) {
    const cJSON *part = member(c->report, name), *theirs = member(part, "environment");
    static const char *const same[] = {"fingerprint", "backend", "precision", "os"};
    if (!cJSON_IsObject(part)) {
        gate_violate(c, "PART_MISSING", "no \"%s\": only a quick report is without it", name);
        return;
    }
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
        if (strcmp(text(theirs, same[i]), text(c->environment, same[i])) != 0)
            gate_violate(c, "PART_FOREIGN", "%s was made on another %s", name, same[i]);
    const char *kind = strrchr(text(part, "kind"), '.');
    if (!kind || strcmp(kind + 1, name) != 0) gate_violate(c, "PART_FOREIGN", "%s is of another kind", name);
}

static void check_options(gate_context *c) {
    const cJSON *o = c->options, *command = member(c->report, "command"), *third = cJSON_GetArrayItem(command, 2);
    const cJSON *policies = member(o, "policies");
    bool restored = cJSON_IsTrue(member(c->environment, "f_theta"));
    if (!cJSON_IsString(third) || strcmp(third->valuestring, "mac-acceptance") != 0)
        gate_violate(c, "COMMAND", "the command did not run mac-acceptance");
    if (!cJSON_IsBool(member(o, "quick")) || !json_is_integer(member(o, "memory_tokens"), MAC_MEMORY_STEPS, 1 << 24) ||
        !json_is_integer(member(o, "sink"), 0, 1 << 24) || !json_is_integer(member(o, "window"), 1, 1 << 24) ||
        !json_is_integer(member(o, "draft_window"), 1, 1 << 24))
        gate_violate(c, "OPTIONS_FORM", "an option is missing, or not of the form that kakeya eval writes");
    cJSON *expected = cJSON_CreateStringArray((const char *[]){"native", restored ? "restored" : "sink-window"}, 2);
    if (!cJSON_Compare(policies, expected, true)) gate_violate(c, "OPTIONS_FORM", "options.policies are others");
    cJSON_Delete(expected);
    if (!is_quick(c) && gate_option(c, "memory_tokens") < 7000)
        gate_violate(c, "MEMORY_UNPROVEN", "a session of %d tokens; 7000 are asked for",
                     gate_option(c, "memory_tokens"));
}

void gate_check_mac(gate_context *c) {
    gate_check_values(c);
    gate_allow_keys(c, "the report", c->report,
                    "kind schema_version complete failure command environment options device notes self_check vectors",
                    "cpu_token_ids streams moved_sessions memory speed lossless niah");
    if (!cJSON_IsTrue(member(c->report, "complete"))) {
        gate_violate(c, "INCOMPLETE", "the evaluation did not come to its end: %.200s", text(c->report, "failure"));
        return;
    }
    gate_check_environment(c);
    check_options(c);
    check_device(c);
    check_self_check(c);
    check_vectors(c);
    check_streams(c);
    check_moved(c);
    check_memory(c);
    check_speed(c);
    if (!is_quick(c)) {
        check_part(c, "lossless");
        check_part(c, "niah");
    }
}
