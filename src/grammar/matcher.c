#include "grammar/matcher.h"

#include <stdlib.h>
#include <string.h>

#include "grammar/automaton_inner.h"
#include "grammar/automaton_letters.h"
#include "grammar/place_cache.h"
#include "text/utf8.h"

typedef enum mode {
    AT_START = 0, /* a thought may begin, or the body */
    IN_LABEL,     /* behind <|channel>, inside of "thought\n" */
    IN_THOUGHT,
    AT_BODY,         /* text or a call begins */
    IN_TEXT,         /* text of the grammar has begun */
    IN_FREE_TEXT,    /* anything */
    IN_FREE_THOUGHT, /* between <|channel> and <channel|> in free text */
    IN_CALL,
    BEHIND_CALL, /* another call, or the end */
} mode;

static const char label[] = "thought\n";
enum { LABEL_BYTES = sizeof label - 1 };

struct matcher {
    const kakeya_grammar *g;
    const int32_t *stop_tokens;
    int n_stop_tokens;
    mode mode;
    size_t label_bytes, thought_tokens;
    int calls; /* begun */
    automaton_state state;
};

/* Where a token leads to. */
typedef struct place {
    mode mode;
    size_t label_bytes, thought_tokens;
    int calls;
    const automaton_state *state; /* NULL: as it is, or at the beginning of a call */
} place;

/* ----------------------------------------------------------------------------------------------------------- memory */

kakeya_status matcher_space_reserve(matcher_space *space, const kakeya_grammar *g, kakeya_error *error) {
    if (!space->trial) space->trial = mem_alloc(space->account, MEM_WORKSPACE, sizeof *space->trial);
    if (!space->trial)
        return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar workspace of %zu bytes: out of memory",
                         sizeof *space->trial);
    return mask_space_reserve(&space->masks, g->tokens, space->account, error);
}

void matcher_space_free(matcher_space *space) {
    mem_free(space->trial);
    space->trial = NULL;
    mask_space_free(&space->masks);
}

void matcher_destroy(matcher *m) { mem_free(m); }
const kakeya_grammar *matcher_grammar(const matcher *m) { return m->g; }

/* The same place in the same answer. */
static void copy(matcher *to, const matcher *from) {
    to->g = from->g;
    to->stop_tokens = from->stop_tokens;
    to->n_stop_tokens = from->n_stop_tokens;
    to->mode = from->mode;
    to->label_bytes = from->label_bytes;
    to->thought_tokens = from->thought_tokens;
    to->calls = from->calls;
    automaton_copy(&to->state, &from->state);
}

/* ---------------------------------------------------------------------------------------------------------- the start
 */

static bool text_is_free(const kakeya_grammar *g) {
    return g->content == GRAMMAR_NOTHING && g->calls != KAKEYA_CALLS_REQUIRED;
}

/* Whether the prompt has opened a thought that nothing has ended. */
static bool thought_is_open(const kakeya_grammar *g, const int32_t *tokens, size_t n) {
    const token_table *t = g->tokens;
    for (size_t i = n; i-- > 0;) {
        if (tokens[i] == t->thought_open && t->thought_open >= 0) return true;
        if (tokenizer_is_special(t->tokenizer, tokens[i]) && tokens[i] != t->quote) return false;
    }
    return false;
}

kakeya_status matcher_create(const kakeya_grammar *g, const int32_t *stop_tokens, int n_stop_tokens,
                             const int32_t *tokens, size_t n, mem_account *account, matcher **out,
                             kakeya_error *error) {
    matcher *m = *out = mem_alloc(account, MEM_WORKSPACE, sizeof *m);
    if (!m) return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar of %zu bytes: out of memory", sizeof *m);
    m->g = g;
    m->stop_tokens = stop_tokens;
    m->n_stop_tokens = n_stop_tokens;
    bool open = thought_is_open(g, tokens, n);
    if (text_is_free(g))
        m->mode = open ? IN_FREE_THOUGHT : IN_FREE_TEXT;
    else
        m->mode = open ? IN_THOUGHT : g->thinking ? AT_START : AT_BODY;
    if (g->content != GRAMMAR_NOTHING) automaton_begin(g->content, &m->state);
    return KAKEYA_OK;
}

/* ---------------------------------------------------------------------------------------------------------- one token
 */

static bool is_stop(const matcher *m, int32_t token) {
    for (int i = 0; i < m->n_stop_tokens; i++)
        if (m->stop_tokens[i] == token) return true;
    return false;
}

static bool step_letter(const matcher *m, matcher_space *space, unsigned letter, place *to) {
    to->state = &space->masks.levels[0];
    return automaton_step(&m->g->program, &m->state, letter, &space->masks.levels[0]);
}

/* While nothing is opened or closed, a place is a few numbers. */
static bool step_text(const matcher *m, matcher_space *space, int32_t token, place *to) {
    const grammar_program *p = &m->g->program;
    size_t bytes;
    const unsigned char *text = (const unsigned char *)token_table_text(m->g->tokens, token, &bytes);
    const automaton_state *from = &m->state; /* that inner[at] stands beside */
    automaton_state *between = space->masks.scratch, *next = space->masks.levels;
    automaton_inner *inner = space->masks.inner;
    int at = 0, level = 0;
    bool moved = false;
    automaton_inner_begin(from, &inner[0]);
    for (size_t i = 0; i < bytes; i++) {
        const inner_result result = automaton_inner_step(p, &inner[at], text[i], &inner[!at]);
        if (result == INNER_REFUSED) return false;
        if (result == INNER_GOES_ON) {
            at = !at;
            moved = true;
            continue;
        }
        if (moved) automaton_inner_state(&inner[at], between);
        if (!automaton_read(p, moved ? between : from, text[i], &next[level])) return false;
        from = &next[level];
        level = !level;
        at = 0;
        moved = false;
        automaton_inner_begin(from, &inner[0]);
    }
    if (moved) automaton_inner_state(&inner[at], between);
    to->state = moved ? between : from;
    return bytes > 0;
}

static bool may_call(const matcher *m) {
    return m->g->call != GRAMMAR_NOTHING && (m->g->max_calls == 0 || m->calls < m->g->max_calls);
}

static bool begin_call(const matcher *m, place *to) {
    to->mode = IN_CALL;
    to->calls = m->calls + 1;
    return may_call(m);
}

static bool thought_may_go_on(const matcher *m, size_t tokens) {
    return !m->g->thinking_tokens || tokens <= (size_t)m->g->thinking_tokens;
}

static bool begin_thought(const matcher *m, mode then, place *to) {
    to->mode = then;
    to->label_bytes = 0;
    to->thought_tokens = 1;
    return thought_may_go_on(m, 1);
}

static bool step_label(const matcher *m, int32_t token, place *to) {
    size_t bytes;
    const char *text = token_table_text(m->g->tokens, token, &bytes);
    size_t missing = LABEL_BYTES - m->label_bytes, common = bytes < missing ? bytes : missing;
    to->label_bytes += common;
    to->mode = to->label_bytes == LABEL_BYTES ? IN_THOUGHT : IN_LABEL;
    return bytes && memcmp(text, label + m->label_bytes, common) == 0;
}

static bool step_body(const matcher *m, matcher_space *space, int32_t token, place *to) {
    const kakeya_grammar *g = m->g;
    if (token == g->tokens->call_open) return begin_call(m, to);
    to->mode = IN_TEXT;
    if (g->content == GRAMMAR_NOTHING) return false;
    return is_stop(m, token) ? automaton_complete(&g->program, &m->state) : step_text(m, space, token, to);
}

static bool step_free(const matcher *m, int32_t token, place *to) {
    const kakeya_grammar *g = m->g;
    const token_table *t = g->tokens;
    if (token == t->call_open && g->calls == KAKEYA_CALLS_NONE) return false;
    if (token == t->call_open && g->calls == KAKEYA_CALLS_AUTO) return begin_call(m, to);
    if (m->mode == IN_FREE_TEXT)
        return token != t->thought_open || t->thought_open < 0 || begin_thought(m, IN_FREE_THOUGHT, to);
    to->thought_tokens++;
    if (token == t->thought_close || is_stop(m, token)) {
        to->mode = IN_FREE_TEXT;
        return token == t->thought_close || thought_may_go_on(m, to->thought_tokens);
    }
    return thought_may_go_on(m, to->thought_tokens);
}

static bool step_call(const matcher *m, matcher_space *space, int32_t token, place *to) {
    const token_table *t = m->g->tokens;
    if (token == t->quote) return step_letter(m, space, LETTER_QUOTE, to);
    if (token != t->call_close) return step_text(m, space, token, to);
    bool last = m->g->max_calls && m->calls >= m->g->max_calls;
    to->mode = text_is_free(m->g) && !last ? IN_FREE_TEXT : BEHIND_CALL;
    return step_letter(m, space, LETTER_CALL_CLOSE, to);
}

/* Where the token leads to; false: it is not allowed. */
static bool step(const matcher *m, matcher_space *space, int32_t token, place *to) {
    const token_table *t = m->g->tokens;
    *to = (place){m->mode, m->label_bytes, m->thought_tokens, m->calls, NULL};
    if (token < 0 || (token >= t->vocab && m->mode != IN_FREE_TEXT)) return false;
    switch (m->mode) {
    case AT_START:
        if (token == t->thought_open) return begin_thought(m, IN_LABEL, to);
        return step_body(m, space, token, to);
    case IN_LABEL:
    case IN_THOUGHT:
        to->thought_tokens++;
        if (token == t->thought_close) {
            to->mode = AT_BODY;
            return true;
        }
        if (!thought_may_go_on(m, to->thought_tokens)) return false;
        return m->mode == IN_LABEL ? step_label(m, token, to) : t->offset[token + 1] > t->offset[token];
    case AT_BODY:
        return step_body(m, space, token, to);
    case IN_TEXT:
        if (is_stop(m, token)) return automaton_complete(&m->g->program, &m->state);
        return step_text(m, space, token, to);
    case IN_FREE_TEXT:
    case IN_FREE_THOUGHT:
        return step_free(m, token, to);
    case IN_CALL:
        return step_call(m, space, token, to);
    case BEHIND_CALL:
        if (token == t->call_open && !text_is_free(m->g)) return begin_call(m, to);
        return is_stop(m, token);
    }
    return false;
}

bool matcher_allows(const matcher *m, matcher_space *space, int32_t token) {
    place to;
    return step(m, space, token, &to);
}

bool matcher_accept(matcher *m, matcher_space *space, int32_t token) {
    place to;
    if (!step(m, space, token, &to)) return false;
    if (to.mode == IN_CALL && m->mode != IN_CALL)
        automaton_begin(m->g->call, &m->state);
    else if (to.state)
        automaton_copy(&m->state, to.state);
    m->mode = to.mode;
    m->label_bytes = to.label_bytes;
    m->thought_tokens = to.thought_tokens;
    m->calls = to.calls;
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- all tokens
 */

static void allow(uint32_t *allowed, int32_t token) { allowed[token / 32] |= 1u << (token % 32); }

static size_t least(size_t a, size_t b) { return a < b ? a : b; }

static void allow_each(const matcher *m, matcher_space *space, uint32_t *allowed, size_t n) {
    place to;
    for (size_t token = 0; token < n; token++)
        if (step(m, space, (int32_t)token, &to)) allow(allowed, (int32_t)token);
}

static void allow_first(uint32_t *allowed, size_t n) {
    memset(allowed, 0xFF, n / 32 * sizeof *allowed);
    if (n % 32) allowed[n / 32] |= (1u << (n % 32)) - 1;
}

/* Tokens whose text may follow. Answers come to the same places again and again. allowed: all zero. */
static void mask_state(const matcher *m, matcher_space *space, uint32_t *allowed, size_t n_words) {
    const token_table *t = m->g->tokens;
    place_key key;
    const bool known = n_words >= token_set_words(t->vocab) &&
                       place_key_make(&m->g->program, m->g->number, PLACE_MASK, &m->state, (uint32_t)t->longest, &key);
    if (known && place_cache_get_mask(t->places, &key, allowed)) return;
    mask_text(m->g, &m->state, &space->masks, allowed, n_words);
    if (known) place_cache_put_mask(t->places, &key, allowed);
}

/* Every token but the control and stop tokens, which mean something by themselves. */
static void mask_others(const matcher *m, matcher_space *space, uint32_t *allowed, size_t n_words) {
    const token_table *t = m->g->tokens;
    const size_t words = least(n_words, token_set_words(t->vocab));
    switch (m->mode) {
    case AT_START:
    case AT_BODY:
        if (m->g->content != GRAMMAR_NOTHING) mask_state(m, space, allowed, n_words);
        break;
    case IN_TEXT:
    case IN_CALL:
        mask_state(m, space, allowed, n_words);
        break;
    case IN_FREE_TEXT:
        allow_first(allowed, 32 * n_words);
        break;
    case IN_FREE_THOUGHT:
        if (thought_may_go_on(m, m->thought_tokens + 1)) allow_first(allowed, least(32 * n_words, (size_t)t->vocab));
        break;
    case IN_THOUGHT:
        if (!thought_may_go_on(m, m->thought_tokens + 1)) break;
        for (size_t i = 0; i < words; i++) allowed[i] |= t->texts[i];
        break;
    case IN_LABEL:
        allow_each(m, space, allowed, least(32 * n_words, (size_t)t->vocab));
        break;
    case BEHIND_CALL:
        break;
    }
}

static void mask_token(const matcher *m, matcher_space *space, int32_t token, uint32_t *allowed, size_t n_words) {
    place to;
    if (token < 0 || (size_t)token / 32 >= n_words) return;
    if (step(m, space, token, &to))
        allow(allowed, token);
    else
        allowed[token / 32] &= ~(1u << (token % 32));
}

void matcher_mask(const matcher *m, matcher_space *space, uint32_t *allowed, size_t n_words) {
    const token_table *t = m->g->tokens;
    const int32_t controls[] = {t->call_open, t->call_close, t->quote, t->thought_open, t->thought_close};
    memset(allowed, 0, n_words * sizeof *allowed);
    mask_others(m, space, allowed, n_words);
    for (size_t i = 0; i < sizeof controls / sizeof *controls; i++) mask_token(m, space, controls[i], allowed, n_words);
    for (int i = 0; i < m->n_stop_tokens; i++) mask_token(m, space, m->stop_tokens[i], allowed, n_words);
}

void matcher_masks(const matcher *m, matcher_space *space, const int32_t *tokens, int n, uint32_t *allowed,
                   size_t n_words) {
    matcher_mask(m, space, allowed, n_words);
    if (n == 0) return;
    int i = 0;
    copy(space->trial, m);
    for (; i < n && matcher_accept(space->trial, space, tokens[i]); i++)
        matcher_mask(space->trial, space, allowed + ((size_t)i + 1) * n_words, n_words);
    memset(allowed + ((size_t)i + 1) * n_words, 0, (size_t)(n - i) * n_words * sizeof *allowed);
}

/* ----------------------------------------------------------------------------------------------------------- drafts */

int matcher_count_allowed(const matcher *m, matcher_space *space, const int32_t *tokens, int n) {
    int allowed = 0;
    copy(space->trial, m);
    while (allowed < n && matcher_accept(space->trial, space, tokens[allowed])) allowed++;
    return allowed;
}

/* The only letter that may follow, or LETTERS. Begins with letters, of which text has many. */
static unsigned only_letter(const matcher *m, matcher_space *space, const automaton_state *s) {
    uint64_t may[LETTER_WORDS];
    unsigned only = LETTERS;
    if (automaton_complete(&m->g->program, s)) return LETTERS;
    const bool few = automaton_letters(&m->g->program, s, may);
    for (unsigned i = 0; i < LETTERS; i++) {
        unsigned letter = (i + 'a') % LETTERS;
        if (few && !(may[letter / 64] >> letter % 64 & 1)) continue;
        if (!automaton_step(&m->g->program, s, letter, &space->masks.levels[1])) continue;
        if (only != LETTERS) return LETTERS;
        only = letter;
    }
    return only;
}

/* Text that must follow; *next: the control letter behind it, or LETTERS. */
static size_t forced_text(const matcher *m, matcher_space *space, char *text, size_t room, unsigned *next) {
    automaton_state *at = &space->masks.levels[0];
    size_t n = 0;
    *next = LETTERS;
    if (space->masks.n_levels < 2) return 0;
    automaton_copy(at, &m->state);
    while (n < room) {
        unsigned letter = only_letter(m, space, at);
        *next = letter > 0xFF ? letter : LETTERS;
        if (letter > 0xFF) break;
        text[n++] = (char)letter;
        (void)automaton_step(&m->g->program, at, letter, &space->masks.levels[1]);
        automaton_copy(at, &space->masks.levels[1]);
    }
    return n;
}

/* Appends what is allowed of the tokens. */
static int append_allowed(matcher *m, matcher_space *space, const int32_t *more, int n_more, int32_t *tokens, int n,
                          int most) {
    for (int i = 0; i < n_more && n < most && matcher_accept(m, space, more[i]); i++) tokens[n++] = more[i];
    return n;
}

enum { FORCED_BYTES = 96 };

/* *whole: no memory was missing. */
static int find_forced(const matcher *m, matcher_space *space, int32_t *tokens, int most, bool *whole) {
    const token_table *t = m->g->tokens;
    matcher *at = space->trial;
    int n = 0;
    *whole = true;
    if (at != m) copy(at, m);
    while (n < most) {
        int before = n;
        unsigned next = LETTERS;
        if (at->mode == AT_BODY && m->g->content == GRAMMAR_NOTHING) {
            n = append_allowed(at, space, &t->call_open, 1, tokens, n, most);
        } else if (at->mode == IN_TEXT || at->mode == IN_CALL || (at->mode == AT_BODY && !may_call(at))) {
            char text[FORCED_BYTES];
            int32_t *ids = NULL;
            size_t n_ids = 0, bytes = forced_text(at, space, text, FORCED_BYTES, &next);
            if (next == LETTERS) bytes = utf8_valid_bytes(text, bytes);
            if (bytes && tokenizer_encode(t->tokenizer, text, bytes, (tokenizer_encode_options){0}, &ids, &n_ids,
                                          NULL) != KAKEYA_OK) {
                *whole = false;
                break;
            }
            if (next == LETTERS && n_ids) n_ids--;
            n = append_allowed(at, space, ids, (int)n_ids, tokens, n, most);
            free(ids);
            if (next == LETTERS) break;
            n = append_allowed(at, space, next == LETTER_QUOTE ? &t->quote : &t->call_close, 1, tokens, n, most);
        }
        if (n == before) break;
    }
    return n;
}

int matcher_forced(const matcher *m, matcher_space *space, int32_t *tokens, int most) {
    const token_table *t = m->g->tokens;
    int32_t found[MATCHER_MAX_FORCED];
    place_key key;
    bool whole;
    int n;
    if (most > MATCHER_MAX_FORCED) most = MATCHER_MAX_FORCED;
    /* in a text one stretch is looked at, with one letter more; otherwise what follows a control token, too */
    const bool known = (m->mode == IN_TEXT || m->mode == IN_CALL) &&
                       place_key_make(&m->g->program, m->g->number, PLACE_FORCED, &m->state,
                                      m->mode == IN_TEXT ? FORCED_BYTES + 1 : UINT32_MAX, &key);
    if (known && place_cache_get_tokens(t->places, &key, tokens, most, &n)) return n;
    n = find_forced(m, space, found, known ? MATCHER_MAX_FORCED : most, &whole);
    if (known && whole) place_cache_put_tokens(t->places, &key, found, n);
    if (n > most) n = most;
    if (n) memcpy(tokens, found, (size_t)n * sizeof *tokens);
    return n;
}

int matcher_correct(const matcher *m, matcher_space *space, int32_t *tokens, int n, int most) {
    const int right = matcher_count_allowed(m, space, tokens, n);
    return right < most ? right + matcher_forced(space->trial, space, tokens + right, most - right) : right;
}
