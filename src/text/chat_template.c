#include "text/chat_template.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "base/hash.h"

/* Template revisions that chat_render is tested against: length and FNV-1a of the text without trailing white space. */
static const struct {
    size_t bytes;
    uint64_t hash;
} known_revisions[] = {
    {18682, UINT64_C(0x6cc370a9399441fa)}, /* 2026-07-09, 26B-A4B and 31B */
    {18568, UINT64_C(0x8f0d9448769de281)}, /* 2026-07-09, E2B and E4B */
};

static bool contains(const char *text, size_t bytes, const char *part) {
    return memmem(text, bytes, part, strlen(part)) != NULL;
}

const char *chat_style_turn(chat_style style) { return style == CHAT_STYLE_GEMMA3 ? "<start_of_turn>" : "<|turn>"; }

/* The published templates of Gemma 3 differ in white space and in how they refuse; their text is the same. Others that
 * write its turns may add roles or tools, which are not rendered here. */
static bool writes_gemma3_turns(const char *text, size_t bytes) {
    return contains(text, bytes, "<start_of_turn>") && contains(text, bytes, "<end_of_turn>");
}

static bool is_plain_gemma3(const char *text, size_t bytes) {
    return contains(text, bytes, "first_user_prefix") && contains(text, bytes, "Conversation roles must alternate") &&
           contains(text, bytes, "<start_of_turn>model") && !contains(text, bytes, "tool") &&
           !contains(text, bytes, "function");
}

chat_template_info chat_template_check(const char *text, size_t bytes) {
    chat_template_info info = {0};
    while (bytes && strchr(" \t\r\n", text[bytes - 1]) && text[bytes - 1]) bytes--;
    uint64_t hash = hash_fnv1a(HASH_FNV1A_START, text, bytes);
    for (size_t i = 0; i < sizeof known_revisions / sizeof *known_revisions; i++) {
        if (known_revisions[i].bytes == bytes && known_revisions[i].hash == hash) info.known = true;
    }
    if (writes_gemma3_turns(text, bytes)) {
        info = (chat_template_info){
            .known = is_plain_gemma3(text, bytes), .gemma_turns = true, .style = CHAT_STYLE_GEMMA3};
        if (!info.known)
            snprintf(info.note, sizeof info.note,
                     "the chat template (%zu bytes, FNV-1a %016llx) is not a known form of Gemma 3's: its turns are "
                     "written, and nothing else that it may add",
                     bytes, (unsigned long long)hash);
        return info;
    }
    info.gemma_turns = contains(text, bytes, "'<|turn>' + role + '\\n'") && contains(text, bytes, "<turn|>\\n") &&
                       contains(text, bytes, "'<|turn>model\\n'");
    if (contains(text, bytes, "<|channel>thought\\n<channel|>")) info.style = CHAT_STYLE_EMPTY_THOUGHT;
    if (info.known) return info;

    /* What the older revisions lack, each a difference in the rendered text. */
    static const struct {
        const char *part, *meaning;
    } features[] = {
        {"'<|think|>\\n'", "the line end after <|think|>"},
        {"continue_same_model_turn", "model turns that continue over tool calls"},
        {"reasoning_content", "reasoning of earlier messages"},
        {"filter_keys", "schema keys named like parameters"},
        {"continues_into_next", "turns left open for the next model message"},
        {"preserve_thinking", "preserved reasoning"},
    };
    if (!info.gemma_turns) {
        snprintf(
            info.note, sizeof info.note,
            "the chat template (%zu bytes, FNV-1a %016llx) writes neither the turns of Gemma 4 nor those of Gemma 3",
            bytes, (unsigned long long)hash);
        return info;
    }
    int used =
        snprintf(info.note, sizeof info.note, "the chat template (%zu bytes, FNV-1a %016llx) is not a known revision",
                 bytes, (unsigned long long)hash);
    for (size_t i = 0; i < sizeof features / sizeof *features; i++) {
        if (contains(text, bytes, features[i].part)) continue;
        snprintf(info.note + used, sizeof info.note - (size_t)used, "; it lacks %s", features[i].meaning);
        break;
    }
    return info;
}
