/* Every path of the server. */
#ifndef KAKEYA_SERVE_ROUTES_H
#define KAKEYA_SERVE_ROUTES_H

#include "serve/call.h"

extern const route serve_routes[];
extern const size_t serve_n_routes;

/* One per file; each ends its call. */
void health_call(call *c); /* status.c */
void liveness_call(call *c);
void page_call(call *c); /* page.c */
void favicon_call(call *c);
void chat_completions_call(call *c); /* openai_chat.c */
void chat_input_tokens_call(call *c);
void chat_render_call(call *c);
void completions_call(call *c);    /* openai_completions.c */
void transcriptions_call(call *c); /* transcriptions.c */
void completions_render_call(call *c);
void models_call(call *c); /* models.c */
void model_call(call *c);
void tokenize_call(call *c); /* tokenize.c */
void tokenizer_info_call(call *c);
void detokenize_call(call *c);
void apply_template_call(call *c);
void props_call(call *c); /* status.c */
void slots_call(call *c);
void metrics_call(call *c);
void model_info_call(call *c); /* gateway.c */
void server_info_call(call *c);
void get_load_call(call *c);
void responses_call(call *c); /* responses.c */
void responses_input_tokens_call(call *c);
void responses_render_call(call *c);
void response_call(call *c); /* responses_stored.c */
void messages_call(call *c); /* anthropic.c */
void messages_count_tokens_call(call *c);
void messages_render_call(call *c);

#endif
