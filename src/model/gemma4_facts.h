/* What files say of a text model of Gemma 4 or Gemma 3, once for both forms: config.json and GGUF. A fact has a name in
 * each, one range, and a meaning where it is absent. Both readers walk the table; what follows from the numbers is
 * settled in one place. docs/reference/formats.md lists the same facts. */
#ifndef KAKEYA_MODEL_GEMMA4_FACTS_H
#define KAKEYA_MODEL_GEMMA4_FACTS_H

#include "base/json.h"
#include "formats/gguf_keys.h"
#include "model/language_model.h"

typedef enum gemma4_fact_id {
    FACT_LAYERS,
    FACT_HIDDEN,
    FACT_CONTEXT,
    FACT_WINDOW,
    FACT_EPS,
    FACT_SOFTCAP,
    FACT_HEADS,
    FACT_KV_HEADS,
    FACT_GLOBAL_KV_HEADS,
    FACT_HEAD_DIM,
    FACT_GLOBAL_HEAD_DIM,
    FACT_INTERMEDIATE,
    FACT_SHARED_KV,
    FACT_EXPERTS,
    FACT_EXPERTS_PER_TOKEN,
    FACT_EXPERT_INTERMEDIATE,
    FACT_PLE,
    FACT_PLE_VOCAB,
    FACT_VOCAB,
    FACT_BOS,
    FACT_PAD,
    FACT_THETA_SLIDING,
    FACT_THETA_FULL,
    FACT_ROPE_FACTOR,
    FACT_COUNT
} gemma4_fact_id;

typedef enum gemma4_fact_kind {
    FACT_INTEGER,
    FACT_NUMBER,
    FACT_LAYERED, /* an integer; a GGUF file may list one for each layer */
    FACT_TOKEN,   /* an id of the vocabulary; -1, 4294967295 and null say that there is none */
    FACT_NESTED,  /* a number deeper in config.json, which model/gemma4_rope.c reads with this range */
} gemma4_fact_kind;

typedef struct gemma4_fact {
    const char *json, *gguf; /* NULL: not said by a key of that form */
    gemma4_fact_kind kind;
    double min, max;
    double json_absent, json_null, gguf_absent; /* NAN: must be there */
} gemma4_fact;

extern const gemma4_fact gemma4_facts[FACT_COUNT];

/* How GGUF files of Gemma 4 begin the names of facts; files of Gemma 3 say "gemma3." instead. */
#define GEMMA4_GGUF_PREFIX "gemma4."

/* How files spell that there is no token: an id of -1, or the same in 32 bits without a sign. */
enum { FACT_NO_TOKEN = -1 };
bool gemma4_is_no_token(double id);

/* A configuration on its way from one of the two forms; the first failure sticks. */
typedef struct gemma4_reading {
    json_reader *json; /* one of the two */
    gguf_keys *gguf;
    double value[FACT_COUNT];
    model_config *config;
} gemma4_reading;

bool gemma4_reading_ok(const gemma4_reading *r);
void gemma4_reading_fail(gemma4_reading *r, kakeya_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* What the fact means where it is absent in the form that is read; NAN: it must be there. */
double gemma4_fact_absent(const gemma4_reading *r, gemma4_fact_id id);
/* The fact's name in the form that is read, for messages. */
const char *gemma4_fact_name(const gemma4_reading *r, gemma4_fact_id id);

/* Reads all values but layered and nested ones. `text`: the object with the text model's keys. */
void gemma4_facts_read_json(gemma4_reading *r, const cJSON *text);
void gemma4_facts_read_gguf(gemma4_reading *r);
/* One for each layer, whose number is known. */
void gemma4_facts_layered(gemma4_reading *r, gemma4_fact_id id, int *out);

/* The numbers of the whole model, before anything of layers. */
void gemma4_settle_sizes(gemma4_reading *r);
/* With types, head dimensions and K/V heads of all layers and config->moe set: checks what must fit together, and fills
 * the experts, per-layer inputs and shared K/V. intermediate: of each layer, or NULL
 * where FACT_INTERMEDIATE holds for all, twice as wide in sharing layers with double_wide. */
void gemma4_settle_layers(gemma4_reading *r, const int *intermediate, bool double_wide);
/* With the vocabulary set: the tokens at the beginning of a text and of padding. */
void gemma4_settle_tokens(gemma4_reading *r);

/* What ends answers and what is never chosen: sets without repetition, in which ids outside of the vocabulary, which
 * are never produced, have no place. False: more than fit. */
bool gemma4_add_stop_token(model_config *c, double id);
void gemma4_settle_stop_tokens(model_config *c);      /* where files name none */
void gemma4_add_turn_end(model_config *c, double id); /* of at most three, for which there is room */
bool gemma4_add_suppressed_token(model_config *c, double id);

#endif
