#include "grammar/character_kinds.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/string_text.h"

/* First bytes. Rows of one kind have the same number. */
static const struct {
    uint8_t first, last, kind;
} rows[] = {
    {0x00, 0x1F, 0},  {' ', ' ', 1},    {'!', '!', 2},    {'"', '"', 3},    {'#', ',', 2},    {'-', '-', 4},
    {'.', '.', 5},    {'/', '/', 6},    {'0', '9', 7},    {':', ':', 8},    {';', '?', 2},    {'@', '@', 9},
    {'A', 'F', 10},   {'G', 'Z', 11},   {'[', '[', 2},    {'\\', '\\', 12}, {']', '^', 2},    {'_', '_', 13},
    {'`', '`', 2},    {'a', 'f', 14},   {'g', 'z', 15},   {'{', 0x7F, 2},   {0xC2, 0xC2, 16}, {0xC3, 0xCF, 17},
    {0xD0, 0xDF, 18}, {0xE0, 0xE0, 19}, {0xE1, 0xE1, 20}, {0xE2, 0xE2, 21}, {0xE3, 0xE3, 22}, {0xE4, 0xE9, 23},
    {0xEA, 0xED, 24}, {0xEE, 0xEE, 25}, {0xEF, 0xEF, 26}, {0xF0, 0xF4, 27},
};
enum { ROWS = sizeof rows / sizeof *rows, ALL_KINDS = (1 << CHARACTER_KINDS) - 1 };

/* ------------------------------------------------------------------------------------------------------- a vocabulary
 */

static uint32_t kind_bit(unsigned byte) {
    for (size_t i = 0; i < ROWS; i++)
        if (byte >= rows[i].first && byte <= rows[i].last) return 1u << rows[i].kind;
    return CHARACTERS_UNKNOWN;
}

static bool is_between(uint32_t at) { return at == BETWEEN || at == NO_STRING; }

typedef struct trie_place {
    uint8_t character, string; /* where a text stands inside of a character, and of a JSON string */
    uint16_t begun;
} trie_place;

/* Fills what a node has from those above it. ends: by node. */
static void go_down(const token_trie *t, trie_place *at, uint8_t *ends, character_kinds *out) {
    at[0] = (trie_place){BETWEEN, BETWEEN, 0};
    for (uint32_t i = 0; i < t->n; i++) {
        const token_trie_node *node = &t->nodes[i];
        trie_place now = at[node->depth];
        ends[i] = (uint8_t)text_step(now.character, node->byte, false);
        now.begun = (uint16_t)(now.begun + is_between(now.string));
        now.character = is_between(ends[i]) ? BETWEEN : ends[i];
        now.string = now.string == NO_STRING ? NO_STRING : (uint8_t)text_step(now.string, node->byte, true);
        at[node->depth + 1] = now;
        out[i] = (character_kinds){.inside = (unsigned)now.character & (CHARACTER_INSIDES - 1u), .begun = now.begun};
        out[i].characters = now.character != BETWEEN;
    }
}

bool character_kinds_of_trie(const token_trie *t, character_kinds *out) {
    uint32_t bits[256];
    size_t depths = 1;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->nodes[i].depth + 2u > depths) depths = t->nodes[i].depth + 2u;
    trie_place *at = malloc(depths * sizeof *at);
    uint8_t *ends = malloc((size_t)t->n + 1);
    if (!at || !ends) {
        free(at);
        free(ends);
        return false;
    }
    go_down(t, at, ends, out);
    for (unsigned byte = 0; byte < 256; byte++) bits[byte] = kind_bit(byte);
    for (uint32_t i = t->n; i-- > 0;) { /* each node after all that is below it */
        uint32_t kinds = 0;
        for (uint32_t k = i + 1; k < t->nodes[i].end; k = t->nodes[k].end) {
            kinds |= out[k].kinds;
            if (is_between(ends[i])) kinds |= bits[t->nodes[k].byte];
            if (ends[k] == NO_STRING) kinds = CHARACTERS_UNKNOWN;
            uint32_t n = out[k].characters + (uint32_t)is_between(ends[k]);
            if (n > out[i].characters) out[i].characters = (uint16_t)n;
        }
        out[i].kinds = kinds & CHARACTERS_UNKNOWN;
    }
    free(at);
    free(ends);
    return true;
}

/* ------------------------------------------------------------------------------------------------------- an automaton
 */

/* Where the characters of a kind lead to, or the rest of a character: kinds behind the others. */
typedef struct kinds_step {
    uint32_t round, state;
    uint8_t kind;
    uint8_t n; /* KINDS_MAX_NEXT + 1: some may be refused */
    uint16_t next[KINDS_MAX_NEXT];
    kinds_lengths lengths;
} kinds_step;

/* Kinds of which any text is read. */
typedef struct kinds_always {
    uint32_t round, state, kinds;
    kinds_lengths lengths;
} kinds_always;

typedef struct kinds_answer {
    uint32_t round, state;
    character_kinds below;
    bool taken;
    kinds_lengths lengths;
} kinds_answer;

/* What is known of one reader; of what is kept, that which is of this round. */
struct kinds_memory {
    uint32_t round, work;
    kinds_step steps[KINDS_KEPT];
    kinds_always always[KINDS_KEPT];
    kinds_answer answers[KINDS_KEPT];
};

static const kinds_lengths no_lengths = {UINT32_MAX, 0, UINT32_MAX};

size_t kinds_memory_bytes(void) { return sizeof(kinds_memory); }

void kinds_begin(kinds_memory *memory) {
    if (++memory->round == 0) {
        memset(memory, 0, sizeof *memory);
        memory->round = 1;
    }
    memory->work = 0;
}

static void widen(kinds_lengths *lengths, const kinds_lengths *more) {
    if (more->least_extra < lengths->least_extra) lengths->least_extra = more->least_extra;
    if (more->most_extra > lengths->most_extra) lengths->most_extra = more->most_extra;
    if (more->longest < lengths->longest) lengths->longest = more->longest;
}

/* Places inside of characters of one kind: a state, where in the character, and how many were counted. */
typedef struct places {
    struct {
        uint16_t state;
        uint8_t inside, counted;
    } of[4 * KINDS_MAX_NEXT];
    uint32_t n;
} places;

static bool add_place(const kinds_reader *r, places *to, uint32_t state, uint32_t inside, uint32_t counted,
                      kinds_lengths *lengths) {
    if (state == DFA_REFUSED) return false;
    uint8_t flags = r->dfa->flags[state];
    if ((flags & r->wanted) != r->wanted || (flags & r->unwanted)) return false;
    if (r->completions && r->completions[state] != DFA_ENDLESS) return false;
    counted += (flags & DFA_CHARACTER) != 0;
    if (r->shortest) {
        uint32_t extra = counted + r->shortest[state];
        if (counted > 1) return false;
        widen(lengths, &(kinds_lengths){extra, extra, r->longest[state]});
    }
    for (uint32_t i = 0; i < to->n; i++)
        if (to->of[i].state == state && to->of[i].inside == inside && to->of[i].counted == counted) return true;
    if (to->n == sizeof to->of / sizeof *to->of) return false;
    to->of[to->n].state = (uint16_t)state;
    to->of[to->n].inside = (uint8_t)inside;
    to->of[to->n++].counted = (uint8_t)counted;
    return true;
}

/* Reads the rest of all characters; where they end is added to the step. */
static bool read_rest(kinds_memory *memory, const kinds_reader *r, places *now, kinds_step *step) {
    for (uint32_t i = 0; i < now->n; i++) { /* grows meanwhile */
        uint32_t state = now->of[i].state, inside = now->of[i].inside, counted = now->of[i].counted, known = 0;
        for (unsigned byte = 0x80; inside != BETWEEN && byte <= 0xBF; byte++) {
            uint32_t next = text_step(inside, byte, false);
            memory->work++;
            if (next != NO_STRING && !add_place(r, now, dfa_next(r->dfa, state, byte), next, counted, &step->lengths))
                return false;
        }
        while (known < step->n && step->next[known] != state) known++;
        if (inside != BETWEEN || known < step->n) continue;
        if (step->n == KINDS_MAX_NEXT) return false;
        step->next[step->n++] = (uint16_t)state;
    }
    return true;
}

/* All characters of a kind from a state; false: some may be refused. */
static bool read_kind(kinds_memory *memory, const kinds_reader *r, kinds_step *step) {
    places now = {.n = 0};
    if (step->kind >= CHARACTER_KINDS) {
        now.n = 1;
        now.of[0].state = (uint16_t)step->state;
        now.of[0].inside = step->kind - CHARACTER_KINDS;
        now.of[0].counted = 0;
    }
    for (size_t row = 0; row < ROWS; row++) {
        for (unsigned byte = rows[row].first; rows[row].kind == step->kind && byte <= rows[row].last; byte++) {
            memory->work++;
            if (!add_place(r, &now, dfa_next(r->dfa, step->state, byte), first_byte(byte), 0, &step->lengths))
                return false;
        }
    }
    return read_rest(memory, r, &now, step);
}

static const kinds_step *step_of(kinds_memory *memory, const kinds_reader *r, uint32_t state, uint32_t kind) {
    kinds_step *step = &memory->steps[(state * (CHARACTER_KINDS + CHARACTER_INSIDES) + kind) % KINDS_KEPT];
    if (step->round != memory->round || step->state != state || step->kind != kind) {
        *step = (kinds_step){.round = memory->round, .state = state, .kind = (uint8_t)kind, .lengths = no_lengths};
        if (!read_kind(memory, r, step)) step->n = KINDS_MAX_NEXT + 1;
    }
    return step;
}

/* States that characters lead to, the nearest first. */
typedef struct reached {
    uint16_t of[KINDS_MAX_STATES], distance[KINDS_MAX_STATES];
    uint32_t n;
} reached;

static bool take_step(const kinds_step *step, uint32_t distance, reached *to, kinds_lengths *lengths) {
    if (step->n > KINDS_MAX_NEXT) return false;
    widen(lengths, &step->lengths);
    for (uint32_t i = 0; i < step->n; i++) {
        uint32_t known = 0;
        while (known < to->n && to->of[known] != step->next[i]) known++;
        if (known < to->n) continue;
        if (to->n == KINDS_MAX_STATES) return false;
        to->distance[to->n] = (uint16_t)distance;
        to->of[to->n++] = step->next[i];
    }
    return true;
}

/* Reads characters of the kinds from all states, as many as there may be. UINT32_MAX: all are read; otherwise a kind of
 * which one may be refused. */
static uint32_t read_kinds(kinds_memory *memory, const kinds_reader *r, uint32_t kinds, uint32_t characters,
                           reached *states, kinds_lengths *lengths) {
    for (uint32_t i = 0; i < states->n; i++) {
        uint32_t left = states->distance[i] < characters ? kinds : 0;
        for (uint32_t kind = 0; left; kind++, left >>= 1) {
            memory->work++;
            if (left & 1 &&
                !take_step(step_of(memory, r, states->of[i], kind), states->distance[i] + 1u, states, lengths))
                return kind;
        }
    }
    return UINT32_MAX;
}

/* From the state, any text of these kinds is read: of all kinds, those are left out that come to a refusal. */
static const kinds_always *always_of(kinds_memory *memory, const kinds_reader *r, uint32_t state) {
    kinds_always *always = &memory->always[state % KINDS_KEPT];
    if (always->round == memory->round && always->state == state) return always;
    *always = (kinds_always){memory->round, state, ALL_KINDS, no_lengths};
    while (always->kinds) {
        reached states = {{(uint16_t)state}, {0}, 1};
        kinds_lengths lengths = no_lengths;
        uint32_t refused = read_kinds(memory, r, always->kinds, UINT32_MAX, &states, &lengths);
        if (refused == UINT32_MAX) {
            always->lengths = lengths;
            break;
        }
        always->kinds &= ~(1u << refused);
    }
    return always;
}

static bool read_below(kinds_memory *memory, const kinds_reader *r, kinds_answer *answer) {
    reached states = {{(uint16_t)answer->state}, {0}, 1};
    const character_kinds *below = &answer->below;
    answer->lengths = no_lengths;
    if (below->inside != BETWEEN) {
        states.n = 0;
        if (!take_step(step_of(memory, r, answer->state, CHARACTER_KINDS + below->inside), 1, &states,
                       &answer->lengths))
            return false;
    }
    bool always = true;
    kinds_lengths lengths = answer->lengths;
    for (uint32_t i = 0; always && i < states.n; i++) {
        const kinds_always *of = always_of(memory, r, states.of[i]);
        always = (below->kinds & ~of->kinds) == 0;
        widen(&lengths, &of->lengths);
    }
    if (!always) return read_kinds(memory, r, below->kinds, below->characters, &states, &answer->lengths) == UINT32_MAX;
    answer->lengths = lengths;
    return true;
}

bool kinds_are_taken(kinds_memory *memory, const kinds_reader *reader, uint32_t state, const character_kinds *below,
                     kinds_lengths *lengths) {
    if (below->kinds > ALL_KINDS) return false;
    const kinds_always *always = &memory->always[state % KINDS_KEPT];
    if (below->inside == BETWEEN && always->round == memory->round && always->state == state &&
        (below->kinds & ~always->kinds) == 0) {
        widen(lengths, &always->lengths);
        return true;
    }
    uint64_t hash =
        ((uint64_t)state << 32 ^ (uint64_t)below->characters << 29 ^ below->kinds) * UINT64_C(0x9E3779B97F4A7C15);
    kinds_answer *answer = &memory->answers[((hash >> 40) + below->inside) % KINDS_KEPT];
    if (answer->round != memory->round || answer->state != state || answer->below.kinds != below->kinds ||
        answer->below.inside != below->inside || answer->below.characters != below->characters) {
        if (memory->work > KINDS_WORK) return false;
        answer->round = memory->round;
        answer->state = state;
        answer->below = *below;
        answer->taken = read_below(memory, reader, answer);
    }
    if (answer->taken) widen(lengths, &answer->lengths);
    return answer->taken;
}
