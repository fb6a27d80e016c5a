#include "grammar/character_reach.h"

#include <string.h>

#include "grammar/string_text.h"

enum { INSIDES = 8, MAX_BYTES = 256, NOT_KNOWN = 0 };

/* Letters that an automaton does not tell apart, and where they lead to inside of a character. */
typedef struct step {
    uint16_t class;
    uint8_t inside;
} step;

typedef struct steps {
    step of[MAX_BYTES];
    uint32_t n; /* 0: not made yet */
} steps;

/* States that are looked at together, and what leads from one to another, by their numbers here. */
typedef struct group {
    uint16_t of[REACH_MAX_STATES], number[DFA_MAX_STATES];
    uint8_t reach[REACH_MAX_STATES]; /* bytes of any text that are read, or REACH_ALWAYS */
    bool left_out[REACH_MAX_STATES]; /* too much to look at */
    uint16_t from[REACH_MAX_EDGES], to[REACH_MAX_EDGES], sorted[REACH_MAX_EDGES];
    uint32_t begin[REACH_MAX_STATES + 1]; /* in sorted: what leads to a state */
    uint16_t queue[REACH_MAX_STATES];
    bool queued[REACH_MAX_STATES];
    uint32_t n, n_edges;
} group;

typedef struct reach_search {
    uint32_t work;
    steps first[ALPHABETS], more[INSIDES];
    group group;
} reach_search;

/* One allocation: the search lies behind what callers see. */
typedef struct reach_memory {
    character_reach reach;
    reach_search search;
} reach_memory;

size_t character_reach_bytes(void) { return sizeof(reach_memory); }

void character_reach_begin(character_reach *reach, const reach_reader *reader) {
    reach_search *search = &((reach_memory *)reach)->search;
    reach->reader = reader;
    reach->search = search;
    search->work = 0;
    memset(reach->inside, 0, reader->dfa->n_states);
    for (uint32_t i = 0; i < ALPHABETS; i++) {
        memset(reach->reach[i], NOT_KNOWN, reader->dfa->n_states);
        reach->lengths[i] = REACH_NO_LENGTHS;
        search->first[i].n = 0;
    }
    for (uint32_t i = 0; i < INSIDES; i++) search->more[i].n = 0;
}

void reach_lengths_widen(reach_lengths *lengths, const reach_lengths *more) {
    if (more->least_extra < lengths->least_extra) lengths->least_extra = more->least_extra;
    if (more->most_extra > lengths->most_extra) lengths->most_extra = more->most_extra;
    if (more->longest < lengths->longest) lengths->longest = more->longest;
}

bool character_reach_is_good(const reach_reader *r, uint32_t state) {
    uint8_t flags = r->dfa->flags[state];
    if ((flags & r->wanted) != r->wanted || (flags & r->unwanted)) return false;
    return !r->completions || r->completions[state] >= r->least_completions;
}

/* ------------------------------------------------------------------------------------------------------------ steps */

static void add_step(steps *s, uint16_t class, uint32_t inside) {
    for (uint32_t i = 0; i < s->n; i++)
        if (s->of[i].class == class && s->of[i].inside == inside) return;
    s->of[s->n++] = (step){class, (uint8_t)inside};
}

/* What may follow between characters of the alphabet, or inside of one. */
static const steps *steps_of(character_reach *reach, uint32_t alphabet, uint32_t inside) {
    steps *s = inside == BETWEEN ? &reach->search->first[alphabet] : &reach->search->more[inside];
    if (s->n) return s;
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t to = text_step(inside, byte, false);
        if (to != NO_STRING && (inside != BETWEEN || alphabet_has(alphabet, byte)))
            add_step(s, reach->reader->dfa->class_of[byte], to);
    }
    return s;
}

/* ---------------------------------------------------------------------------------------------------------- a group */

/* The number of a state in the group; REACH_MAX_STATES: there is no room. */
static uint32_t number_of(group *g, uint32_t state) {
    uint32_t number = g->number[state];
    if (number < g->n && g->of[number] == state) return number;
    if (g->n == REACH_MAX_STATES) return REACH_MAX_STATES;
    g->of[g->n] = g->number[state] = (uint16_t)state;
    g->reach[g->n] = REACH_ALWAYS;
    g->left_out[g->n] = g->queued[g->n] = false;
    g->number[state] = (uint16_t)g->n;
    return g->n++;
}

/* What leads on from a state; false: a character may be refused. *left_out: or there is no room. */
static bool look(character_reach *reach, uint32_t alphabet, uint32_t from, bool *left_out) {
    group *g = &reach->search->group;
    const reach_reader *r = reach->reader;
    const uint32_t state = g->of[from], before = g->n_edges;
    const steps *s = steps_of(reach, alphabet, reach->inside[state] - 1u);
    for (uint32_t i = 0; i < s->n; i++) {
        uint16_t next = r->dfa->next[state * r->dfa->n_classes + s->of[i].class];
        reach->search->work++;
        if (next == DFA_REFUSED || !character_reach_is_good(r, next)) return false;
        if (reach->inside[next] == 0) reach->inside[next] = (uint8_t)(1 + s->of[i].inside);
        if (reach->inside[next] != 1 + s->of[i].inside) return false;
        uint32_t to = number_of(g, next), e = before;
        while (e < g->n_edges && g->to[e] != to) e++;
        if (e < g->n_edges) continue;
        if (to == REACH_MAX_STATES || g->n_edges == REACH_MAX_EDGES) {
            *left_out = true;
            return false;
        }
        g->from[g->n_edges] = (uint16_t)from;
        g->to[g->n_edges++] = (uint16_t)to;
    }
    return true;
}

static void sort_edges(group *g) {
    memset(g->begin, 0, (g->n + 1) * sizeof *g->begin);
    for (uint32_t i = 0; i < g->n_edges; i++) g->begin[g->to[i] + 1]++;
    for (uint32_t i = 0; i < g->n; i++) g->begin[i + 1] += g->begin[i];
    for (uint32_t i = 0; i < g->n_edges; i++) g->sorted[g->begin[g->to[i]]++] = g->from[i];
    for (uint32_t i = g->n; i > 0; i--) g->begin[i] = g->begin[i - 1]; /* each had become its own end */
    g->begin[0] = 0;
}

/* Shortest ways to a refusal, from those that are known. */
static void spread(group *g) {
    uint32_t n = 0, at = 0;
    for (uint32_t i = 0; i < g->n; i++) {
        if (g->reach[i] == REACH_ALWAYS) continue;
        g->queued[i] = true;
        g->queue[n++] = (uint16_t)i;
    }
    while (n > 0) {
        uint32_t to = g->queue[at];
        at = (at + 1) % REACH_MAX_STATES;
        n--;
        g->queued[to] = false;
        uint8_t longer = (uint8_t)(g->reach[to] + (g->reach[to] < MANY_BYTES - 1));
        for (uint32_t i = g->begin[to]; i < g->begin[to + 1]; i++) {
            uint32_t from = g->sorted[i];
            if (g->reach[from] <= longer) continue;
            g->reach[from] = longer;
            if (g->queued[from]) continue;
            g->queued[from] = true;
            g->queue[(at + n++) % REACH_MAX_STATES] = (uint16_t)from;
        }
    }
}

/* A character is counted where it ends, and once. */
static void add_lengths(const reach_reader *r, uint32_t state, reach_lengths *lengths) {
    uint32_t counted = (r->dfa->flags[state] & DFA_CHARACTER) != 0;
    reach_lengths_widen(lengths,
                        &(reach_lengths){r->shortest[state] + counted, r->shortest[state] + 1, r->longest[state]});
}

static void find_reach(character_reach *reach, uint32_t alphabet, uint32_t state) {
    group *g = &reach->search->group;
    const reach_reader *r = reach->reader;
    g->n = g->n_edges = 0;
    number_of(g, state);
    for (uint32_t i = 0; i < g->n; i++) { /* grows meanwhile */
        uint8_t known = reach->reach[alphabet][g->of[i]];
        bool counted_inside =
            r->shortest && reach->inside[g->of[i]] != 1 + BETWEEN && (r->dfa->flags[g->of[i]] & DFA_CHARACTER);
        if (r->shortest) add_lengths(r, g->of[i], &reach->lengths[alphabet]);
        if (known != NOT_KNOWN)
            g->reach[i] = known == REACH_ALWAYS ? known : known - 1;
        else if (counted_inside || reach->search->work > REACH_WORK || !look(reach, alphabet, i, &g->left_out[i]))
            g->reach[i] = 0;
        g->left_out[i] |= reach->search->work > REACH_WORK;
    }
    sort_edges(g);
    spread(g);
    for (uint32_t i = 0; i < g->n; i++)
        if (!g->left_out[i]) reach->reach[alphabet][g->of[i]] = (uint8_t)(g->reach[i] + (g->reach[i] != REACH_ALWAYS));
}

void character_reach_find(character_reach *reach, uint32_t state, const character_kinds *below) {
    if (reach->search->work > REACH_WORK) return;
    if (reach->inside[state] == 0) reach->inside[state] = (uint8_t)(1 + below->inside);
    find_reach(reach, below->alphabet, state);
}
