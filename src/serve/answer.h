/* One answer, from the ids of its prompt to the events that an API turns into JSON. An API file fills answer_options
 * out of a request, runs the answer, and formats the events; it knows nothing of sessions, threads or memory. */
#ifndef KAKEYA_SERVE_ANSWER_H
#define KAKEYA_SERVE_ANSWER_H

#include "serve/call.h"
#include "serve/grammar_cache.h"

enum { ANSWER_MAX_CHOICES = 128, ANSWER_MAX_STOPS = 16, ANSWER_MAX_STOP_TOKENS = 64 };

/* Texts are borrowed: they live in the body of the call, which outlives the answer. */
typedef struct answer_options {
    int32_t *ids; /* the prompt; owned by the answer, freed with kakeya_free */
    size_t n_ids;
    /* Pictures and sounds of the prompt, which are the call's; the list is owned by the answer. */
    kakeya_media *media;
    size_t n_media;
    int32_t *keys;     /* [n_ids] with media, by which the prompt is known (kakeya_prompt_keys); malloc'ed, owned */
    const char *param; /* the field that the prompt comes from; NULL: "messages" */
    size_t n_stable;   /* ids that the next request of the conversation begins with; 0: not known */
    /* The conversation that the ids in front of n_stable say: its answers are remembered. Lives as long as the call.
     * NULL: they are not. */
    const kakeya_chat_message *messages;
    size_t n_messages;
    char *begun;         /* what the answer goes on with; malloc'ed, owned by the answer. NULL: nothing */
    bool fresh;          /* reuse nothing that was computed before */
    const char *salt;    /* reuse only what was computed for the same one; NULL: none */
    double least_cached; /* share of the prompt, 0 to 1: where less is found, nothing is computed ("cache_threshold") */
    size_t choices;      /* 1..ANSWER_MAX_CHOICES */
    kakeya_sampling sampling;
    float presence_penalty, frequency_penalty;
    int max_tokens;     /* of every choice; 0: to the end of the context */
    size_t min_tokens;  /* before a stop token may come */
    bool raw;           /* text as it is: no thoughts, no calls */
    bool without_calls; /* none can be chosen */
    const char *tools;  /* JSON text of the declared tools; NULL: none */
    size_t tools_bytes;
    bool hide_reasoning;
    int64_t thinking_budget; /* tokens of a thought; < 0: no limit */
    size_t max_calls;        /* the answer ends behind the last of them */
    const char *id_prefix;   /* of call ids; NULL: "call_" */
    const char *stops[ANSWER_MAX_STOPS];
    size_t n_stops;
    bool keep_stop; /* the stop string is part of the text */
    int32_t stop_tokens[ANSWER_MAX_STOP_TOKENS];
    size_t n_stop_tokens;
    bool ignore_stop_tokens; /* of the model */
    kakeya_logit_bias *bias; /* malloc'ed, owned by the answer */
    size_t n_bias;
    bool logprobs;
    bool score_stop; /* with raw and logprobs: a stop token of the model's that ends the answer has one too, and no text
                      */
    int top_logprobs;
    cached_grammar *grammar; /* taken by the answer; NULL: none */
    int32_t *prediction;     /* n_prediction tokens that the answer is expected to be like; freed with kakeya_free */
    size_t n_prediction;
    bool token_ids; /* ANSWER_TOKEN events are wanted */
} answer_options;

void answer_options_init(answer_options *options);
void answer_options_free(answer_options *options);         /* what was not given to an answer */
const int32_t *answer_keys(const answer_options *options); /* [n_ids]: keys, or ids where there are no pictures */
/* How often the token that stands for rows of pictures, or of sounds, does so in the prompt. */
size_t answer_media_tokens(const answer_options *options, int32_t token);
/* Pictures and sounds of the first n ids. */
size_t answer_media_before(const answer_options *options, size_t n);
/* n, or, where it lies inside of a picture or a sound, the begin of that. */
size_t answer_outside_media(const answer_options *options, size_t n);

/* A prompt of more tokens than the first is refused by the second before all of it has been read: it would take long,
 * and would not fit by far. least: it has so many at least. Returns false. */
size_t answer_most_tokens(const server_context *server);
bool answer_is_too_long(const server_context *server, size_t least, const char *param, api_error *error);
/* Whether the context has room for the prompt and one token of an answer. False: *error. */
bool answer_has_room(const server_context *server, const answer_options *options, api_error *error);

typedef struct answer_logprob {
    int32_t token;
    double value; /* natural logarithm */
    size_t n_top;
    kakeya_log_probability top[KAKEYA_MAX_TOP_LOG_PROBABILITIES];
} answer_logprob;

typedef enum answer_event_type {
    ANSWER_BEGIN = 0,  /* the prompt is right and its turn has come. finish_reason: all choices end with it at once */
    ANSWER_CONTENT,    /* text, logprobs of the tokens that it consists of */
    ANSWER_REASONING,  /* text */
    ANSWER_CALL_BEGIN, /* call, id, name */
    ANSWER_CALL_ARGUMENTS, /* call, text */
    ANSWER_CALL_END,       /* call */
    ANSWER_TOKEN,          /* token */
    ANSWER_FINISH,         /* of one choice: finish_reason, stop_text, stop_token */
    ANSWER_PROGRESS,       /* prompt_done of prompt_total: where the sink wants to know */
    ANSWER_PING,           /* nothing has been said for a while: prompt_done of prompt_total, or 0 of 0 */
    ANSWER_FLUSH,          /* what came since the last one may be sent in one piece */
    ANSWER_DONE,           /* the last event: usage. The sink ends the call */
    ANSWER_FAILED,         /* the last event: error. The sink ends the call */
} answer_event_type;

/* What it took. Times in seconds. */
typedef struct answer_usage {
    size_t prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens; /* completion: of all choices */
    size_t image_tokens, audio_tokens; /* of prompt_tokens: rows, without the two tokens around each */
    size_t first_tokens;               /* of completion_tokens: those that come with the prompt, one of every choice */
    double queue_seconds, prefill_seconds, first_token_seconds;
    double decode_seconds; /* behind the first token */
    uint64_t drafted, accepted, forwards;
    size_t kv_bytes;                        /* K/V memory of its sessions, when it was last measured */
    uint64_t predicted, predicted_accepted; /* drafts from options.prediction, of all choices; at the end alone */
} answer_usage;

/* Tokens per second behind the first ones, which a forward of the prompt brings; 0 where there are none. */
double answer_speed(const answer_usage *usage);

typedef struct answer_event {
    answer_event_type type;
    size_t choice;
    const char *text; /* not NUL-terminated */
    size_t text_bytes;
    const answer_logprob *logprobs;
    size_t n_logprobs;
    size_t call;
    const char *id, *name;
    int32_t token;
    const char *finish_reason; /* "stop", "length", "tool_calls", "cache_threshold" */
    const char *stop_text;     /* the stop string that ended the choice, or NULL */
    int32_t stop_token;        /* one of options.stop_tokens that ended the choice, or -1 */
    size_t prompt_done, prompt_total;
    const answer_usage *usage; /* so far */
    const api_error *error;
} answer_event;

/* Called on the network thread, in order. What an event points to is valid during the call only. */
typedef struct answer_sink {
    void (*event)(void *user, const answer_event *event);
    void *user;
    bool streams;  /* ANSWER_PING and ANSWER_FLUSH are wanted */
    bool progress; /* ANSWER_PROGRESS is wanted */
    bool timings;  /* usage is right in every event, not in the last one alone */
} answer_sink;

/* Takes the options and runs: at once on the worker thread that calls this, or, where all places are taken, on another
 * one once there is a place; until then it has no thread. The sink ends the call with the last event. Neither the call
 * nor anything of it must be used afterwards. */
void answer_start(call *c, answer_options *options, const answer_sink *sink);
/* The same, where another answer follows in the same call. Takes the options and runs; returns when the sessions are
 * back in the store. On a worker thread. False: the last event is ANSWER_FAILED. The sink ends the call with the last
 * event, so the call must not be used afterwards; a sink that wants several answers in one call goes on after
 * ANSWER_DONE, and ends the call with the last of them. */
bool answer_run(call *c, answer_options *options, const answer_sink *sink);

/* Network thread, now and then: pings. */
void answers_tick(server_context *server, double now);
/* Sessions of answers that run, by what they do. */
typedef struct answer_counts {
    size_t prompt, decode, stalled;
} answer_counts;
answer_counts answers_count(server_context *server);
/* Tokens that they hold, and those of prompts that wait. */
size_t answers_tokens(server_context *server);
/* A JSON list of what runs and waits, without texts. */
void answers_list(server_context *server, text_buffer *out);
/* Network thread, now and then: ends those that take longer than --request-timeout; their sinks get ANSWER_FAILED. */
void answers_expire(server_context *server, double now);
/* Ends all that run or wait for their turn, because a computation has failed; their sinks get ANSWER_FAILED "backend".
 */
void answers_fail(server_context *server);
/* Ends all that run; their sinks get ANSWER_FAILED "draining". */
void answers_stop(server_context *server);

/* The seed of a choice: that of the request for the first one. */
uint64_t answer_choice_seed(uint64_t seed, size_t choice);

#endif
