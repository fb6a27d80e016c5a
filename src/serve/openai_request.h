/* Fields that OpenAI's two APIs for completions share, and pieces of JSON that their answers share. */
#ifndef KAKEYA_SERVE_OPENAI_REQUEST_H
#define KAKEYA_SERVE_OPENAI_REQUEST_H

#include "serve/answer.h"
#include "serve/body.h"

/* Sampling, stops, biases, seeds and choices. */
void openai_read_sampling(call *c, fields *f, answer_options *out);
/* A text, or a list of them, that ends the content. */
void openai_read_stops(const call *c, fields *f, const char *name, answer_options *out);
/* The first of the named fields that is given (NULL-terminated): tokens of an answer, -1 for no limit. 0 where none is.
 */
int openai_read_max_tokens(fields *f, const char *const *names, int64_t least, int fallback);
/* kakeya_tokenize_at_most of a text of the request. */
kakeya_status openai_tokenize(const call *c, const char *text, int how, size_t most, int32_t **ids, size_t *n_ids,
                              kakeya_error *why);
/* A model that is served, or 404. */
const char *openai_read_model(call *c, fields *f);

/* "usage":{...} without a comma around it. */
void openai_usage(text_buffer *out, const answer_usage *usage);
/* "timings":{...} */
void openai_timings(text_buffer *out, const answer_usage *usage);
/* {"token":..,"logprob":..,"bytes":[..],"top_logprobs":[..]} for each, with commas between. */
void openai_chat_logprobs(text_buffer *out, const kakeya_tokenizer *tokenizer, const answer_logprob *entries, size_t n);
/* The bytes that a token stands for, appended. */
void openai_token_bytes(text_buffer *out, const kakeya_tokenizer *tokenizer, int32_t token);
/* The same, or "token_id:N" where the model has no tokenizer. */
void openai_token_name(text_buffer *out, const kakeya_tokenizer *tokenizer, int32_t token);
/* {"token_ids":[..],"features":null}: a prompt as routers read it, which have no engine of their own to make ids.
 * features: of its pictures, as vLLM has them: {"mm_hashes":{"image":[digest..]},
 * "mm_placeholders":{"image":[{"offset":..,"length":..}..]}}. */
void openai_rendered(text_buffer *out, const int32_t *ids, size_t n);
void openai_rendered_prompt(text_buffer *out, const answer_options *options);
/* What vllm-router and SGLang's gateway add to requests, at the values that are true of every answer here. */
void openai_accept_routers_fields(fields *f);
/* metadata has no effect, but is an object of at most 16 pairs. */
void openai_check_metadata(fields *f);
/* "kakeya-0.3.0-1f3a9c20-native": what has to be the same for answers to be the same. */
void openai_fingerprint(const server_context *server, char out[96]);

#endif
