/* Any text as a JSON Schema, for JSON and as the parameters of a tool. What compiles leads nowhere where nothing may
 * follow. */
#include "grammar_fuzzing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const uint8_t path[] = "{\"a\": [1, \"x\\n\"], \"b\": null}}}]]]{{{\xFE\xFF,,,:::000\xC3\xA9\xFE}}]]\xFF";
    if (size == 0) return 0;
    const char *text = (const char *)data + 1;
    size_t bytes = size - 1;
    if (data[0] % 2 == 0) {
        kakeya_grammar *g = fuzzing_grammar(KAKEYA_GRAMMAR_JSON_SCHEMA, text, bytes, NULL, 0);
        if (g) fuzzing_walk(g, g->content, path, sizeof path);
        grammar_free(g);
        return 0;
    }
    static const char before[] = "[{\"name\":\"f\",\"parameters\":", after[] = "}]";
    size_t all = sizeof before + bytes + sizeof after;
    char *tools = malloc(all);
    if (!tools) return 0;
    memcpy(tools, before, sizeof before - 1);
    memcpy(tools + sizeof before - 1, text, bytes);
    memcpy(tools + sizeof before - 1 + bytes, after, sizeof after);
    kakeya_grammar *g =
        fuzzing_grammar(KAKEYA_GRAMMAR_TEXT, NULL, 0, tools, sizeof before - 1 + bytes + sizeof after - 1);
    if (g) fuzzing_walk(g, g->call, path, sizeof path);
    grammar_free(g);
    free(tools);
    return 0;
}
