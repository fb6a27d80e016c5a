#include "serve/answer_checkpoints.h"

#include <stdbool.h>

enum { GRID = 2048 };

/* Ids that begin a turn of the template; control tokens, which no text of a client can be. */
typedef struct turn_marks {
    int32_t open, close, system, user;
} turn_marks;

static bool find_marks(const kakeya_tokenizer *t, turn_marks *out) {
    if (!t) return false;
    *out = (turn_marks){.open = kakeya_tokenizer_find(t, "<|turn>"),
                        .close = kakeya_tokenizer_find(t, "<turn|>"),
                        .system = kakeya_tokenizer_find(t, "system"),
                        .user = kakeya_tokenizer_find(t, "user")};
    return out->open >= 0 && out->close >= 0;
}

/* The end of the leading system turn, its line end included; 0 where the prompt begins otherwise. */
static size_t system_turn(const turn_marks *m, const int32_t *ids, size_t n) {
    if (m->system < 0 || n < 4 || ids[1] != m->open || ids[2] != m->system) return 0;
    for (size_t i = 3; i + 1 < n; i++)
        if (ids[i] == m->close) return i + 2;
    return 0;
}

/* The last start of a user's turn in [least, most]; 0: there is none. */
static size_t user_turn(const turn_marks *m, const int32_t *ids, size_t n, size_t least, size_t most) {
    if (m->user < 0 || n < 2) return 0;
    for (size_t i = most < n - 2 ? most : n - 2; i > 0 && i >= least; i--)
        if (ids[i] == m->open && ids[i + 1] == m->user) return i;
    return 0;
}

/* About one point for every doubling of the distance from the end. */
static bool is_kept(size_t point, size_t n) {
    size_t distance = (n - point) / GRID, step = 1;
    while (step * 2 <= distance) step *= 2;
    return point / GRID % step == 0;
}

/* Puts it in its place, unless what it adds to those around it is too little. */
static void add(checkpoint *out, size_t *count, size_t known, size_t position, store_reason reason) {
    size_t at = 0;
    while (at < *count && out[at].position < position) at++;
    size_t before = at > 0 ? out[at - 1].position : known;
    bool near = at < *count && out[at].position < position + CHECKPOINT_LEAST_ADDED;
    if (position < before + CHECKPOINT_LEAST_ADDED || near || *count == ANSWER_MAX_CHECKPOINTS) return;
    for (size_t i = (*count)++; i > at; i--) out[i] = out[i - 1];
    out[at] = (checkpoint){position, reason};
}

size_t answer_checkpoints(const kakeya_tokenizer *tokenizer, const int32_t *ids, size_t n, size_t end, size_t known,
                          checkpoint out[ANSWER_MAX_CHECKPOINTS]) {
    size_t count = 0, limit = end ? end : n;
    turn_marks marks;
    bool turns = find_marks(tokenizer, &marks);
    size_t last = turns ? user_turn(&marks, ids, n, known + CHECKPOINT_LEAST_ADDED, limit) : 0;
    size_t system = turns ? system_turn(&marks, ids, n) : 0;
    if (last)
        add(out, &count, known, last, last == system ? STORE_SYSTEM_TURN : STORE_GRID);
    else if (system < limit)
        add(out, &count, known, system, STORE_SYSTEM_TURN);
    for (size_t point = GRID; point + (end ? CHECKPOINT_LEAST_ADDED : 1) <= limit; point += GRID) {
        if (!is_kept(point, n)) continue;
        size_t turn = turns ? user_turn(&marks, ids, n, point - GRID + 1, point) : 0;
        bool shared = turn > 0 && turn == system;
        if (turn && turn >= known + CHECKPOINT_LEAST_ADDED)
            add(out, &count, known, turn, shared ? STORE_SYSTEM_TURN : STORE_GRID);
        else
            add(out, &count, known, point, STORE_GRID);
    }
    return count;
}
