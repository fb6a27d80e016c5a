#include "backend/cuda/exchange.h"

static size_t whole_lines(size_t bytes) { return (bytes + 255) / 256 * 256; }

cuda_inbox cuda_inbox_layout(int devices, int hidden, int decode_rows, int prompt_rows) {
    cuda_inbox layout = {0};
    size_t row = CUDA_EXCHANGE_VECTORS * (size_t)hidden * sizeof(float), slots = 2 * (size_t)(devices - 1);
    layout.flagged_slot = whole_lines(2 * row * (size_t)decode_rows);
    layout.plain_slot = whole_lines(row * (size_t)prompt_rows);
    layout.plain = slots * layout.flagged_slot;
    layout.meeting = layout.plain + slots * layout.plain_slot;
    layout.bytes = layout.meeting + whole_lines(slots * sizeof(uint32_t));
    return layout;
}
