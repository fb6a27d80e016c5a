/* RoPE parameters of config.json. */
#ifndef KAKEYA_MODEL_GEMMA4_ROPE_H
#define KAKEYA_MODEL_GEMMA4_ROPE_H

#include "base/json.h"
#include "model/language_model.h"

/* Fills config->rope of the layer types that occur. Layer types and head dimensions are set. `text` is the object that
 * holds the text model's keys. */
void gemma4_read_rope(json_reader *reader, const cJSON *text, model_config *config);

#endif
