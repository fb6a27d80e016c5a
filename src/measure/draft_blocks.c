#include "measure/draft_blocks.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool draft_blocks_add(draft_blocks *blocks, const draft_block *block) {
    if (blocks->n == blocks->capacity) {
        size_t capacity = blocks->capacity ? 2 * blocks->capacity : 64;
        draft_block *grown = realloc(blocks->block, capacity * sizeof *grown);
        if (!grown) return false;
        blocks->block = grown;
        blocks->capacity = capacity;
    }
    blocks->block[blocks->n++] = (draft_block){
        .source = block->source, .asked = block->asked, .drafted = block->drafted, .looked_up = block->looked_up};
    return true;
}

void draft_blocks_free(draft_blocks *blocks) {
    free(blocks->block);
    *blocks = (draft_blocks){0};
}

static void write_block(FILE *out, const draft_block *b) {
    if (draft_source_asks(b->source)) {
        fprintf(out, "%c%d", b->source == DRAFT_DFLASH ? 'd' : 'a', b->asked);
        if (b->looked_up || b->drafted != b->asked) fprintf(out, ":%d+%d", b->drafted - b->looked_up, b->looked_up);
    } else if (b->source == DRAFT_NGRAM) {
        fprintf(out, "n%d", b->drafted);
    } else {
        fputc('0', out);
    }
}

char *draft_blocks_to_text(const draft_blocks *blocks) {
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    for (size_t i = 0; i < blocks->n; i++) {
        if (i) fputc(' ', out);
        write_block(out, &blocks->block[i]);
    }
    if (fclose(out) == 0) return text;
    free(text);
    return NULL;
}

/* One to BACKEND_MAX_DRAFT, or 0 where that is a count; -1: none of these. */
static int read_count(const char **at, int least) {
    char *end;
    if (!isdigit((unsigned char)**at)) return -1;
    long value = strtol(*at, &end, 10);
    *at = end;
    return value >= least && value <= BACKEND_MAX_DRAFT ? (int)value : -1;
}

static bool read_block(const char **at, draft_block *out) {
    *out = (draft_block){.source = DRAFT_NONE};
    char source = *(*at)++;
    if (source == '0') return true;
    if (source != 'd' && source != 'a' && source != 'n') return false;
    int count = read_count(at, 1), kept = count, more = 0;
    out->source = source == 'd' ? DRAFT_DFLASH : source == 'a' ? DRAFT_ASSISTANT : DRAFT_NGRAM;
    const bool asked = draft_source_asks(out->source);
    if (asked && **at == ':') {
        ++*at;
        kept = read_count(at, 0);
        if (**at != '+') return false;
        ++*at;
        more = read_count(at, 0);
    }
    if (count < 0 || kept < 0 || more < 0 || kept > count || kept + more > BACKEND_MAX_DRAFT) return false;
    out->asked = asked ? count : 0;
    out->drafted = kept + more;
    out->looked_up = more;
    return true;
}

kakeya_status draft_blocks_from_text(const char *text, draft_blocks *out, kakeya_error *error) {
    *out = (draft_blocks){0};
    for (const char *at = text; *at;) {
        draft_block block;
        bool good = read_block(&at, &block) && (!*at || (*at == ' ' && at[1]));
        if (!good) return error_set(error, KAKEYA_FORMAT, "block %zu is not valid", out->n);
        if (*at) at++;
        if (!draft_blocks_add(out, &block)) return error_set(error, KAKEYA_OUT_OF_MEMORY, "no memory for blocks");
    }
    return KAKEYA_OK;
}
