/* How many sessions fit into a memory, told from configurations alone. */
#ifndef KAKEYA_MEASURE_SESSION_ROOM_H
#define KAKEYA_MEASURE_SESSION_ROOM_H

#include "kakeya_study.h"
#include "session/description.h"

typedef enum room_device { ROOM_CPU = 0, ROOM_GPU } room_device;

/* What a session holds. */
typedef struct room_session {
    size_t kv;        /* K/V memory once it answers: exact */
    size_t own;       /* beside it: hidden states that wait for the drafter's context, token ids, row kinds */
    size_t beginning; /* beyond these while its first answer begins: the rings of its prompt. One session at a time is
                         there, as prompts are computed one after the other */
    size_t shared;    /* what the first such session adds to the engine's workspace, for all of them */
} room_session;

/* What is held once, whatever the number of sessions. */
typedef struct room_engine {
    size_t weights;   /* on a CPU as the files have them, mapped; on a GPU in bf16. What an engine may go without (the
                         head's int8 copy) is not counted */
    size_t workspace; /* of the largest forward, and RoPE tables up to the longest session that there has been: on
                         a CPU within a hundredth of what is held, on a GPU an estimate */
    size_t sound;     /* beside it while a sound of 30 seconds becomes rows; 0: none is read */
    size_t picture;   /* beside it while a picture becomes rows; 0: the model, or the device, reads none */
} room_engine;

/* max_rows and threads of the backend: room_rows, and on a CPU the threads of its pool. */
room_engine room_of_engine(const kakeya_description *description, room_device device, int max_rows, int threads,
                           int longest_tokens);
/* `sound` of an engine. */
size_t room_of_sound(const kakeya_description *description, room_device device);
/* `picture` of a picture of `budget` tokens. */
size_t room_of_picture(const kakeya_description *description, room_device device, int threads, int budget);
int room_default_rows(room_device device, size_t memory_bytes);
/* The same with a limit on weights; 0: there is none. */
int room_rows(const kakeya_description *description, room_device device, size_t memory_bytes, int threads,
              size_t weights_limit);
/* A session of `tokens` tokens, at least 1. options: resolved, a kv_format of AUTO follows the checkpoint. */
room_session room_of_session(const kakeya_description *description, room_device device,
                             const kakeya_session_options *options, int tokens);
/* Sessions that fit at once. */
size_t room_sessions(size_t memory_bytes, const room_engine *engine, const room_session *session);

#endif
