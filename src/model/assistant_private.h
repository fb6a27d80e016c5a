/* Inside of model/assistant*.c: what GGUF files call the tensors of the head's clusters. */
#ifndef KAKEYA_MODEL_ASSISTANT_PRIVATE_H
#define KAKEYA_MODEL_ASSISTANT_PRIVATE_H

#define ASSISTANT_GGUF_CENTROIDS "masked_embd_centroids.weight"
#define ASSISTANT_GGUF_ORDERING  "masked_embd_ordering"

#endif
