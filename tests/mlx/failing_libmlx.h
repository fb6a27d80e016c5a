/* Failures of libmlx and of C++ beneath the backend, for tests: the linker puts these in place of what the backend's
 * own objects call (--wrap); libmlx itself is as it is. */
#ifndef KAKEYA_TESTS_FAILING_LIBMLX_H
#define KAKEYA_TESTS_FAILING_LIBMLX_H

#ifdef __cplusplus
extern "C" {
#endif

typedef enum failing {
    FAILING_CALL = 0,   /* a function of the backend's C face, when it begins */
    FAILING_NO_BUFFER,  /* libmlx's allocator gives nothing */
    FAILING_ALLOCATOR,  /* libmlx's allocator throws */
    FAILING_EVALUATION, /* an evaluation throws: an exception of the library's */
    FAILING_UNKNOWN,    /* an evaluation throws something that is no exception */
    FAILING_NEW,        /* C++ gets no memory for an object of the backend's */
    FAILING_KINDS
} failing;

/* From now on the call of this kind behind the next `calls` ones fails, once; negative: none does. */
void fail_after(failing what, int calls);
const char *failing_name(failing what);

#ifdef __cplusplus
}
#endif

#endif
