/* Lists of words: which keys an object may hold. */
#include <string.h>

#include "measure/gate_private.h"

bool gate_is_listed(const char *list, const char *word) {
    size_t length = strlen(word);
    if (!length || strchr(word, ' ')) return false;
    for (const char *at = list; (at = strstr(at, word)) != NULL; at += length)
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || !at[length])) return true;
    return false;
}

void gate_allow_keys(gate_context *context, const char *where, const cJSON *object, const char *list,
                     const char *more) {
    for (const cJSON *item = cJSON_IsObject(object) ? object->child : NULL; item; item = item->next)
        if (!gate_is_listed(list, item->string) && !gate_is_listed(more, item->string))
            gate_violate(context, "UNKNOWN_KEY", "%s holds \"%.60s\", which kakeya eval does not write", where,
                         item->string);
}
