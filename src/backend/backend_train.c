#include "backend/backend_train.h"

#include <string.h>

const backend_train_ops *cpu_train(void);

const backend_train_ops *backend_train_find(const backend_ops *ops) {
    return strcmp(ops->name, "cpu") == 0 ? cpu_train() : NULL;
}
