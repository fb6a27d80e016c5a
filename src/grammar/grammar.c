#include "grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_text.h"
#include "base/nul.h"
#include "grammar/regex.h"
#include "grammar/rules.h"
#include "grammar/schema.h"

/* Documents that the compiler refers to while it works. */
typedef struct compilation {
    kakeya_grammar *g;
    const kakeya_grammar_options *o;
    schema_compiler *schemas;
    cJSON *schema, *tools, *documents; /* documents: of rules, a list */
    uint32_t any_object;
    const cJSON **loose; /* by tool: its parameters, if they may be left out */
    kakeya_error *error;
} compilation;

static kakeya_status add_node(compilation *c, node_kind kind, grammar_form form, uint32_t *node) {
    *node = program_add(&c->g->program, kind, form, c->error);
    return *node != GRAMMAR_NOTHING ? KAKEYA_OK : c->error ? c->error->status : KAKEYA_OUT_OF_MEMORY;
}

static kakeya_status add_root(compilation *c, uint32_t value, uint32_t *root) {
    kakeya_status status = add_node(c, NODE_ROOT, GRAMMAR_JSON, root);
    if (status == KAKEYA_OK) c->g->program.nodes[*root].rest = value;
    return status;
}

/* ---------------------------------------------------------------------------------------------------------- content */

static kakeya_status add_word(compilation *c, uint32_t node, const char *text, size_t bytes, uint32_t *word) {
    uint16_t *letters = malloc((bytes + 1) * sizeof *letters);
    char *meant = malloc(bytes + 1);
    if (meant) bytes = nul_read(meant, text, bytes);
    for (size_t i = 0; i < bytes && letters && meant; i++) letters[i] = (unsigned char)meant[i];
    free(meant);
    bool done = letters && meant && trie_add(&c->g->program.nodes[node].words, letters, bytes, word);
    free(letters);
    return done ? KAKEYA_OK : error_set(c->error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
}

static kakeya_status compile_choice(compilation *c, uint32_t *node) {
    const cJSON *item;
    kakeya_status status = add_node(c, NODE_LITERAL, GRAMMAR_JSON, node);
    if (status == KAKEYA_OK) status = schema_parse("choice", c->o->text, c->o->text_bytes, &c->schema, c->error);
    if (status != KAKEYA_OK) return status;
    int n = cJSON_IsArray(c->schema) ? cJSON_GetArraySize(c->schema) : 0;
    if (n < 1 || n > SCHEMA_MAX_VALUES)
        return error_set(c->error, KAKEYA_FORMAT, "choice: not a list of 1 to %d texts", (int)SCHEMA_MAX_VALUES);
    uint32_t word = 0;
    cJSON_ArrayForEach(item, c->schema) {
        if (!cJSON_IsString(item)) return error_set(c->error, KAKEYA_FORMAT, "choice: element %u is not a text", word);
        uint32_t own = word++;
        status = add_word(c, *node, item->valuestring, strlen(item->valuestring), &own);
        if (status != KAKEYA_OK) return status;
    }
    return KAKEYA_OK;
}

static kakeya_status compile_rules(compilation *c, const char *text, size_t bytes, uint32_t *node) {
    rule_set rules;
    kakeya_status status = rules_parse(text, bytes, &rules, c->error);
    if (status != KAKEYA_OK) return status;
    if (!c->documents) c->documents = cJSON_CreateArray();
    if (!c->documents || !rules_unfold(&rules))
        status = error_set(c->error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    else
        status = rules_compile(&rules, &c->g->program, c->schemas, c->documents, node, c->error);
    rules_free(&rules);
    return status;
}

/* A node of what an expression matches as a whole. */
static kakeya_status add_expression(compilation *c, const char *text, size_t bytes, grammar_form form, uint32_t *node) {
    grammar_program *p = &c->g->program;
    kakeya_status status = add_node(c, NODE_DFA, form, node);
    if (status == KAKEYA_OK) status = regex_compile(text, bytes, REGEX_WHOLE, &p->nodes[*node].dfa, c->error);
    if (status != KAKEYA_OK) return status;
    const dfa *made = &p->nodes[*node].dfa;
    if (!program_spend(p, program_steps(made)) || !program_count_states(p, made))
        return error_set(c->error, KAKEYA_UNSUPPORTED, "regular expression: too large together with the others");
    return KAKEYA_OK;
}

static kakeya_status look_for_halves(compilation *c) {
    char *mended;
    size_t bytes;
    kakeya_status status = json_text_mend("schema", c->o->text, c->o->text_bytes, false, &mended, &bytes, c->error);
    schema_set_halves(c->schemas, mended != NULL);
    free(mended);
    return status;
}

static kakeya_status compile_content(compilation *c) {
    const kakeya_grammar_options *o = c->o;
    uint32_t node = GRAMMAR_NOTHING;
    kakeya_status status = KAKEYA_OK;
    switch (o->kind) {
    case KAKEYA_GRAMMAR_TEXT:
        return KAKEYA_OK;
    case KAKEYA_GRAMMAR_JSON_OBJECT:
        status = schema_any_object(c->schemas, GRAMMAR_JSON, &node, c->error);
        break;
    case KAKEYA_GRAMMAR_JSON_SCHEMA:
        status = schema_parse("schema", o->text, o->text_bytes, &c->schema, c->error);
        if (status == KAKEYA_OK) status = look_for_halves(c);
        if (status == KAKEYA_OK)
            status = schema_compile(c->schemas, c->schema, "schema #", GRAMMAR_JSON, &node, c->error);
        schema_set_halves(c->schemas, false); /* of tools, another text */
        break;
    case KAKEYA_GRAMMAR_REGEX:
        status = add_expression(c, o->text, o->text_bytes, GRAMMAR_JSON, &node);
        break;
    case KAKEYA_GRAMMAR_CHOICE:
        status = compile_choice(c, &node);
        break;
    case KAKEYA_GRAMMAR_RULES:
        status = compile_rules(c, o->text, o->text_bytes, &node);
        break;
    }
    return status == KAKEYA_OK ? add_root(c, node, &c->g->content) : status;
}

/* ------------------------------------------------------------------------------------------------------------ calls */

static bool is_wanted(const kakeya_grammar_options *o, const char *name) {
    for (size_t i = 0; i < o->n_tool_names; i++)
        if (strcmp(o->tool_names[i], name) == 0) return true;
    return o->n_tool_names == 0;
}

static bool is_name(const cJSON *name) {
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
    if (!cJSON_IsString(name)) return false;
    size_t n = strlen(name->valuestring);
    return n > 0 && n <= 128 && strspn(name->valuestring, plain) == n;
}

/* A declaration that cannot be followed at all: any object. */
static kakeya_status loosen_tool(compilation *c, const cJSON *parameters, const char *where, uint32_t *arguments) {
    *arguments = c->any_object;
    return schema_leave_out(c->schemas, parameters, where, c->error);
}

static size_t place_of(const compilation *c, size_t index) {
    return index < c->o->n_tool_places ? c->o->tool_places[index] : index;
}

static void name_parameters(const compilation *c, size_t index, char out[80]) {
    snprintf(out, 80, "tools[%zu].%.32s #", place_of(c, index), c->o->parameters ? c->o->parameters : "parameters");
}

/* One text between the quote letters of the only argument. */
static kakeya_status compile_custom(compilation *c, const cJSON *custom, size_t index, uint32_t *arguments) {
    static const char head[] = "{input:", tail[] = "}";
    const char *definition = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(custom, "definition"));
    const char *syntax = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(custom, "syntax"));
    grammar_program *p = &c->g->program;
    uint16_t letters[sizeof head];
    uint32_t parts[3] = {0}, word = 0;
    kakeya_status status = add_node(c, NODE_LITERAL, GRAMMAR_CALL, &parts[0]);
    if (status == KAKEYA_OK) status = add_node(c, NODE_LITERAL, GRAMMAR_CALL, &parts[2]);
    if (status == KAKEYA_OK) status = add_node(c, NODE_ROW, GRAMMAR_CALL, arguments);
    if (status == KAKEYA_OK && syntax && strcmp(syntax, "regex") == 0) {
        status = add_expression(c, definition, strlen(definition), GRAMMAR_CALL, &parts[1]);
    } else if (status == KAKEYA_OK) {
        status = compile_rules(c, definition, strlen(definition), &parts[1]);
    }
    if (status != KAKEYA_OK) return error_prefix(c->error, status, "tools[%zu].format", place_of(c, index));
    for (size_t i = 0; head[i]; i++) letters[i] = (unsigned char)head[i];
    letters[sizeof head - 1] = LETTER_QUOTE;
    bool good = trie_add(&p->nodes[parts[0]].words, letters, sizeof head, &word);
    letters[0] = LETTER_QUOTE;
    letters[1] = (unsigned char)tail[0];
    word = 0;
    good = good && trie_add(&p->nodes[parts[2]].words, letters, 2, &word);
    for (size_t i = 0; i < 3; i++) good = good && program_add_child(&p->nodes[*arguments], parts[i]);
    return good ? KAKEYA_OK : error_set(c->error, KAKEYA_OUT_OF_MEMORY, "tools: out of memory");
}

/* {"type": "function", "function": {"name", "parameters"}}, or the function alone. */
static kakeya_status compile_tool(compilation *c, uint32_t calls, const cJSON *tool, size_t index) {
    const cJSON *function = cJSON_GetObjectItemCaseSensitive(tool, "function");
    if (!function) function = tool;
    const cJSON *name = cJSON_GetObjectItemCaseSensitive(function, "name");
    const cJSON *parameters = cJSON_GetObjectItemCaseSensitive(function, "parameters");
    const cJSON *strict = cJSON_GetObjectItemCaseSensitive(function, "strict");
    char where[80], word[160];
    uint32_t arguments, own = c->g->program.nodes[calls].n_children, n_nodes = c->g->program.n;
    if (!is_name(name))
        return error_set(c->error, KAKEYA_FORMAT, "tools[%zu]: the name is not made of letters, digits, _ - and .",
                         place_of(c, index));
    if (!is_wanted(c->o, name->valuestring)) return KAKEYA_OK;
    kakeya_status status = KAKEYA_OK;
    const cJSON *custom = cJSON_GetObjectItemCaseSensitive(tool, "custom");
    bool follows = cJSON_IsString(cJSON_GetObjectItemCaseSensitive(custom, "definition"));
    bool loosen = c->o->loosen && !cJSON_IsTrue(strict) && !follows;
    arguments = c->any_object;
    name_parameters(c, index, where);
    schema_set_loosen(c->schemas, loosen);
    if (follows)
        status = compile_custom(c, custom, index, &arguments);
    else if (parameters && !cJSON_IsNull(parameters))
        status = schema_compile(c->schemas, parameters, where, GRAMMAR_CALL, &arguments, c->error);
    if (status != KAKEYA_OK && (!loosen || status == KAKEYA_OUT_OF_MEMORY)) return status;
    if (status != KAKEYA_OK) {
        program_cut(&c->g->program, n_nodes);
        schema_forget_nodes(c->schemas, n_nodes);
        status = loosen_tool(c, parameters, where, &arguments);
    }
    if (status == KAKEYA_OK && loosen) c->loose[own] = parameters;
    int n = snprintf(word, sizeof word, "call:%s", name->valuestring);
    uint32_t number = own;
    status = add_word(c, calls, word, (size_t)n, &number);
    if (status == KAKEYA_OK && number != own)
        return error_set(c->error, KAKEYA_FORMAT, "tools[%zu]: there is another tool named '%s'", place_of(c, index),
                         name->valuestring);
    if (status == KAKEYA_OK && !program_add_child(&c->g->program.nodes[calls], arguments))
        return error_set(c->error, KAKEYA_OUT_OF_MEMORY, "tools: out of memory");
    return status;
}

static kakeya_status compile_calls(compilation *c) {
    const kakeya_grammar_options *o = c->o;
    const token_table *t = c->g->tokens;
    uint32_t calls;
    size_t index = 0;
    if (o->calls == KAKEYA_CALLS_FREE || o->calls == KAKEYA_CALLS_NONE) return KAKEYA_OK;
    if (t->call_open < 0 || t->call_close < 0 || t->quote < 0)
        return error_set(c->error, KAKEYA_UNSUPPORTED, "tools: the vocabulary has no control tokens for calls");
    if (!o->tools) return error_set(c->error, KAKEYA_INVALID_ARGUMENT, "tools: there are none, but calls are required");
    kakeya_status status = schema_parse("tools", o->tools, o->tools_bytes, &c->tools, c->error);
    if (status == KAKEYA_OK) status = add_node(c, NODE_CALL, GRAMMAR_CALL, &calls);
    if (status != KAKEYA_OK) return status;
    const cJSON *list = cJSON_IsObject(c->tools) ? cJSON_GetObjectItemCaseSensitive(c->tools, "tools") : c->tools,
                *tool;
    if (!cJSON_IsArray(list)) return error_set(c->error, KAKEYA_FORMAT, "tools: not a list");
    status = schema_any_object(c->schemas, GRAMMAR_CALL, &c->any_object, c->error);
    if (status != KAKEYA_OK) return status;
    c->loose = calloc((size_t)cJSON_GetArraySize(list) + 1, sizeof *c->loose);
    if (!c->loose) return error_set(c->error, KAKEYA_OUT_OF_MEMORY, "tools: out of memory");
    cJSON_ArrayForEach(tool, list) {
        status = compile_tool(c, calls, tool, index++);
        if (status != KAKEYA_OK) return status;
    }
    uint32_t found = c->g->program.nodes[calls].n_children;
    if (found == 0 || found < o->n_tool_names)
        return error_set(c->error, KAKEYA_INVALID_ARGUMENT, "tools: only %u of the %zu allowed names are declared",
                         found, o->n_tool_names);
    return add_root(c, calls, &c->g->call);
}

/* --------------------------------------------------------------------------------------------------------- the face */

static kakeya_status check(const kakeya_grammar *g, const kakeya_grammar_options *o, kakeya_error *error) {
    bool needs_text = o->kind > KAKEYA_GRAMMAR_JSON_OBJECT;
    if ((int)o->kind < 0 || o->kind > KAKEYA_GRAMMAR_RULES)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "grammar: unknown kind %d", (int)o->kind);
    if ((int)o->calls < 0 || o->calls > KAKEYA_CALLS_REQUIRED)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "grammar: unknown kind of calls %d", (int)o->calls);
    if (needs_text && !o->text) return error_set(error, KAKEYA_INVALID_ARGUMENT, "grammar: its text is missing");
    if (o->kind != KAKEYA_GRAMMAR_TEXT && o->calls == KAKEYA_CALLS_REQUIRED)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "grammar: required calls exclude any other text");
    if (o->max_calls < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "grammar: max_calls is %d, must be at least 0", o->max_calls);
    if (o->thinking_tokens < 0)
        return error_set(error, KAKEYA_INVALID_ARGUMENT, "grammar: thinking_tokens is %d, must be at least 0",
                         o->thinking_tokens);
    if ((o->thinking || o->thinking_tokens) && (g->tokens->thought_open < 0 || g->tokens->thought_close < 0))
        return error_set(error, KAKEYA_UNSUPPORTED, "grammar: the vocabulary has no control tokens for thoughts");
    return KAKEYA_OK;
}

/* Arguments are an object, whatever else a schema allows. */
static bool may_be_object(const grammar_program *p, uint32_t at) {
    const grammar_node *node = &p->nodes[at];
    bool found = node->kind == NODE_ROW || (node->kind == NODE_OBJECT && node->depth < node->depth_limit);
    for (uint32_t i = 0; node->kind == NODE_UNION && i < node->n_children; i++)
        found = found || may_be_object(p, node->children[i]);
    return found;
}

static kakeya_status compile(compilation *c) {
    kakeya_grammar *g = c->g;
    kakeya_status status = check(g, c->o, c->error);
    if (status == KAKEYA_OK) status = compile_content(c);
    if (status == KAKEYA_OK) status = compile_calls(c);
    g->program.lenient = c->o->loosen && g->content == GRAMMAR_NOTHING;
    if (status == KAKEYA_OK) status = program_finish(&g->program, c->error);
    if (status == KAKEYA_OK && g->content != GRAMMAR_NOTHING) {
        status = program_check_value(&g->program, g->content, c->error);
        if (status != KAKEYA_OK)
            error_prefix(c->error, status, c->o->kind == KAKEYA_GRAMMAR_JSON_SCHEMA ? "schema #" : "grammar");
        if (status == KAKEYA_INVALID_ARGUMENT) return schema_explain(c->schemas, status, c->error);
        if (status != KAKEYA_OK) return status;
    }
    if (status == KAKEYA_OK && g->call != GRAMMAR_NOTHING) {
        const grammar_node *calls = &g->program.nodes[g->program.nodes[g->call].rest];
        for (uint32_t i = 0; i < calls->n_children && status == KAKEYA_OK; i++) {
            status = program_check_value(&g->program, calls->children[i], c->error);
            if (status == KAKEYA_OK && !may_be_object(&g->program, calls->children[i]))
                status = error_set(c->error, KAKEYA_INVALID_ARGUMENT, "no object is possible");
            if (status == KAKEYA_OK) continue;
            if (!c->loose[i]) return error_prefix(c->error, status, "tools: arguments of tool %u", i);
            char where[80];
            name_parameters(c, i, where);
            status = loosen_tool(c, c->loose[i], where, &calls->children[i]);
        }
    }
    return status;
}

kakeya_status grammar_compile(const token_table *tokens, const kakeya_grammar_options *options, kakeya_grammar **out,
                              kakeya_error *error) {
    kakeya_error own = {0};
    compilation c = {.o = options, .error = error ? error : &own};
    *out = NULL;
    c.g = calloc(1, sizeof *c.g);
    if (!c.g) return error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    *c.g = (kakeya_grammar){.tokens = tokens,
                            .number = mask_cache_number(tokens->cache),
                            .content = GRAMMAR_NOTHING,
                            .call = GRAMMAR_NOTHING,
                            .calls = options->calls,
                            .max_calls = options->max_calls,
                            .thinking = options->thinking,
                            .thinking_tokens = options->thinking_tokens};
    c.schemas = schema_compiler_create(&c.g->program);
    if (c.schemas) schema_set_strict_order(c.schemas, !options->any_order);
    kakeya_status status = c.schemas ? compile(&c) : error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    if (c.schemas) c.g->notes = cJSON_Duplicate(schema_notes(c.schemas), true);
    if (status == KAKEYA_OK && schema_notes(c.schemas) && !c.g->notes)
        status = error_set(error, KAKEYA_OUT_OF_MEMORY, "grammar: out of memory");
    schema_compiler_destroy(c.schemas);
    cJSON_Delete(c.schema);
    cJSON_Delete(c.tools);
    cJSON_Delete(c.documents);
    free(c.loose);
    if (status == KAKEYA_OK)
        *out = c.g;
    else
        grammar_free(c.g);
    return status;
}

void grammar_free(kakeya_grammar *g) {
    if (!g) return;
    program_free(&g->program);
    cJSON_Delete(g->notes);
    free(g);
}

size_t grammar_bytes(const kakeya_grammar *g) { return sizeof *g + program_bytes(&g->program); }
