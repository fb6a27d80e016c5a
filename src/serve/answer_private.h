/* What the files of an answer share: its choices, and the queue of its events. */
#ifndef KAKEYA_SERVE_ANSWER_PRIVATE_H
#define KAKEYA_SERVE_ANSWER_PRIVATE_H

#include "serve/admission.h"
#include "serve/answer.h"
#include "serve/answer_turn.h"
#include "serve/workers.h"

/* --- events on their way to the network thread (answer_queue.c) */

/* Records of different length, one behind the other. */
typedef struct event_record {
    answer_event_type type;
    size_t bytes; /* of the whole record, with what follows it: log-probabilities, then text */
    size_t choice, call, text_bytes, n_logprobs, prompt_done;
    int32_t token;
    const char *finish_reason, *stop_text;
    int32_t stop_token;
} event_record;

typedef struct event_queue {
    text_buffer in, out; /* writers add to `in`, the network thread reads `out` */
} event_queue;

struct answer;

/* --- one of the texts that are generated behind the prompt (answer_choice.c) */

typedef enum choice_end {
    CHOICE_GOES_ON = 0,
    CHOICE_CANCELLED,   /* nobody wants it any more */
    CHOICE_STOP_STRING, /* a stop string is complete */
    CHOICE_STOP_TOKEN,  /* one of the request's own */
    CHOICE_CALLS,       /* it has made as many calls as it may */
    CHOICE_STOPPED,     /* the model ended it */
    CHOICE_LENGTH,
    CHOICE_FAILED,
} choice_end;

typedef struct answer_choice {
    struct answer *answer;
    size_t index;
    size_t copies; /* choices index .. index + copies - 1 are this text */
    kakeya_session *session;
    kakeya_request *request;    /* NULL: none is under way */
    bool done;                  /* under the answer's lock: the request is */
    size_t starved;             /* requests in a row that found no memory for a further token */
    size_t starved_at;          /* tokens by then */
    kakeya_chat_parser *parser; /* NULL with raw */
    answer_turn turn;           /* with options.messages: what the client has been told */
    choice_end end;
    int32_t stop_token;
    int stop_string;  /* raw */
    size_t generated; /* tokens that were delivered */
    double last_token;
    answer_logprob *pending; /* of tokens whose text has not come yet */
    size_t n_pending, room_pending;
    size_t n_settled; /* of those: in front of what is held back */
    /* mask */
    size_t masked; /* tokens of the timeline that have been looked at */
    int64_t thought_tokens;
    int32_t first_stop;      /* in ids: what the constraint knows */
    kakeya_stats stats;      /* of the submission that is under way: what the metrics know of it */
    size_t uncounted;        /* tokens that the metrics do not know: their forward has not ended */
    _Atomic size_t kv_bytes; /* of the session, when it was last measured */
    bool finished;           /* the client has been told all but its end, */
    event_record last;       /* which is this */
    bool drafted;            /* the forward before had drafts: several tokens may come at once */
    bool alone;              /* what is being said is to be written by the thread that computes */
    api_error error;
} answer_choice;

struct answer {
    server_context *server;
    call *call;
    answer_options options;
    answer_sink sink;
    int32_t id_channel, id_channel_end;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    event_queue queue;
    pthread_mutex_t speaking; /* held by whoever calls the sink before the answer's end. Taken before `lock` */
    bool posted;              /* the task for the network thread is under way */
    http_task task;
    bool over;              /* under lock: the last event is due behind those in the queue */
    _Atomic bool lost;      /* an event found no memory: the answer fails */
    _Atomic bool cancelled; /* the client has left, or the server drains */
    _Atomic bool draining;  /* the latter */
    _Atomic bool broken;    /* a computation has failed: everybody's does */
    _Atomic bool stalled;   /* the client takes nothing */
    bool submitted;         /* under lock: sessions may be cancelled */
    size_t n_choices;       /* that are generated; the others are copies */
    answer_choice choices[ANSWER_MAX_CHOICES];
    answer_usage usage; /* complete once the worker is done */
    answer_usage final; /* what every end of a choice is told with; under `complete` */
    _Atomic bool complete;
    _Atomic size_t prompt_done, cached; /* tokens of the prompt: held so far; found */
    _Atomic size_t prompt_piece;        /* tokens up to which the submission under way computes */
    size_t copy_at;         /* the next submission of the whole prompt copies its beginning; 0: it does not */
    bool files;             /* and that has a file before the answer ends */
    kakeya_session *copy;   /* under lock: such a copy, until the worker has given it to the store */
    admission_entry entry;  /* with which it waits for a place, */
    worker_task work;       /* and how it goes on where nobody waits for it on a thread */
    admission_result place; /* what became of it */
    bool held, told;        /* under lock: answer_run waits for it; it knows */
    double predicted;       /* seconds that it may have to wait */
    _Atomic bool has_place; /* it is past the admission */
    _Atomic bool first_token_seen;
    _Atomic double first_token_at;                /* seconds; with first_token_seen */
    _Atomic uint64_t drafted, accepted, forwards; /* so far */
    _Atomic bool expired;                         /* --request-timeout */
    _Atomic size_t tokens;                        /* of all choices, so far */
    _Atomic size_t sampled;                       /* stop tokens included; of submissions that have ended */
    double begun, begun_prompt;                   /* the second: its turn came, before ANSWER_BEGIN */
    uint64_t arrival;                             /* of its first submission; 0: none yet */
    bool declined;                                /* less than options.least_cached was found */
    api_error error;
    /* --- whoever speaks */
    bool streaming; /* ANSWER_BEGIN has been delivered */
    double last_said;
    struct answer *next, **link; /* of all answers; under the server's lock */
};

typedef struct answer answer;

/* Adds an event, and wakes the network thread where somebody is to hear of it soon. text and logprobs are copied. An
 * event that finds no memory cancels the answer. */
void answer_say(answer *a, event_record record, const char *text, const answer_logprob *logprobs);
/* The same on the thread that computes, which writes to the client itself where it can: where nothing else is to be
 * computed or told beside this one event, because waking the network thread would take longer; and where that thread
 * has no processor of its own, because it would be stopped in the middle of a step's events. */
void answer_say_alone(answer *a, event_record record, const char *text, const answer_logprob *logprobs);
/* The end: ANSWER_DONE, or ANSWER_FAILED where a->error is set. The answer must not be used afterwards. */
void answer_say_last(answer *a);
/* Pauses the choice's request if the network thread is too far behind, which lets it go on. */
void answer_pause(answer_choice *c);
/* K/V memory that the sessions of its choices held when each was last measured. */
size_t answer_kv_bytes(const answer *a);

/* The choice has this session from now on; NULL: none. Returns the one that it had. */
kakeya_session *choice_set_session(answer_choice *c, kakeya_session *session);

/* Opens the parser. False: a->error. */
bool choice_open(answer_choice *c);
void choice_close(answer_choice *c);
/* Fills what the library needs to generate. The strings and biases are the answer's. */
void choice_generate_options(answer_choice *c, kakeya_generate_options *out);
/* Takes note of the memory that the session holds. On the thread that computes, or while no submission is under way. */
void choice_measure(answer_choice *c);
/* Adds to the metrics what the submission has taken since the last call: forwards and the tokens that came of them. */
void choice_count(answer_choice *c, const kakeya_stats *so_far);
/* After the last token: tells what was held back; its tokens are remembered for what clients send back of it, and its
 * session is needed no more. Once; later calls do nothing. */
void choice_finish(answer_choice *c);
/* Its end, after choice_finish, once the answer's usage is complete. */
void choice_tell_end(answer_choice *c);

#endif
