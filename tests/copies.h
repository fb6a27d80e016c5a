/* Altered copies of a bundled checkpoint: each test breaks one tensor of it. Include after scratch.h. */
#ifndef KAKEYA_TESTS_COPIES_H
#define KAKEYA_TESTS_COPIES_H

#include "formats/safetensors.h"
#include "scratch.h"

typedef struct copy_change {
    const char *drop;                    /* leaves this tensor out */
    const char *rename, *renamed;        /* gives a tensor another name */
    const char *reshape;                 /* lists this tensor's dimensions in reverse order, with a 1 in front */
    const char *retype;                  /* stores this tensor as I32 */
    const char *add[4];                  /* adds tensors of one float */
    const char *from_prefix, *to_prefix; /* renames all tensors that start so */
} copy_change;

/* Copies all tensors of `source` into `target`, changed. */
static inline void copy_safetensors(const char *source, const char *target, const copy_change *change) {
    kakeya_error error = {0};
    safetensors *file;
    assert_ok(safetensors_open(source, &file, &error));
    safetensors_entry *entries = calloc(file->count + 4, sizeof *entries);
    char(*names)[256] = calloc(file->count + 4, sizeof *names);
    const tensor **kept = calloc(file->count + 4, sizeof *kept);
    size_t n = 0;
    int applied = 0,
        wanted = !!change->drop + !!change->rename + !!change->reshape + !!change->retype + !!change->from_prefix;
    for (size_t i = 0; i < file->count; i++) {
        const tensor *t = &file->tensors[i];
        if (change->drop && strcmp(t->name, change->drop) == 0) {
            applied++;
            continue;
        }
        safetensors_entry *e = &entries[n];
        *e = (safetensors_entry){.name = names[n], .type = t->type, .dims = t->dims};
        memcpy(e->shape, t->shape, sizeof e->shape);
        snprintf(names[n], sizeof names[n], "%s", t->name);
        if (change->rename && strcmp(t->name, change->rename) == 0) {
            snprintf(names[n], sizeof names[n], "%s", change->renamed);
            applied++;
        }
        if (change->from_prefix && strncmp(t->name, change->from_prefix, strlen(change->from_prefix)) == 0) {
            snprintf(names[n], sizeof names[n], "%s%s", change->to_prefix, t->name + strlen(change->from_prefix));
            applied |= 1;
        }
        if (change->reshape && strcmp(t->name, change->reshape) == 0) {
            e->dims = t->dims + 1;
            e->shape[0] = 1;
            for (int d = 0; d < t->dims; d++) e->shape[d + 1] = t->shape[t->dims - 1 - d];
            applied++;
        }
        if (change->retype && strcmp(t->name, change->retype) == 0) {
            e->type = TENSOR_I32;
            applied++;
        }
        kept[n++] = t;
    }
    for (int i = 0; i < 4 && change->add[i]; i++)
        entries[n++] = (safetensors_entry){.name = change->add[i], .type = TENSOR_F32, .dims = 1, .shape = {1}};
    assert_int_equal(applied, wanted); /* a change that changes nothing tests nothing */
    safetensors_writer *writer;
    assert_ok(safetensors_writer_open(target, entries, n, &writer, &error));
    for (size_t i = 0; i < n; i++) {
        const float one = 1;
        if (kept[i])
            assert_ok(safetensors_writer_write(writer, kept[i]->data, kept[i]->bytes, &error));
        else
            assert_ok(safetensors_writer_write(writer, &one, sizeof one, &error));
    }
    assert_ok(safetensors_writer_commit(writer, &error));
    safetensors_close(file);
    free(kept);
    free(names);
    free(entries);
}

static inline void copy_file(const char *source, const char *target) {
    size_t bytes;
    char *data = scratch_read(source, &bytes);
    scratch_write(target, data, bytes); /* target is relative to the scratch directory */
    free(data);
}

#endif
