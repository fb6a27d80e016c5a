# To be sourced: what this machine has of CUDA.

# Where CMake looks, too.
find_nvcc() {
    for place in "${CUDACXX:-}" "$(command -v nvcc || true)" "${CUDA_PATH:-/nonexistent}/bin/nvcc" /usr/local/cuda/bin/nvcc \
        /opt/cuda/bin/nvcc; do
        [ -x "$place" ] || continue
        echo "$place"
        return 0
    done
    return 1
}

# The architecture to compile for: the device's own, with Hopper's instructions where it has them.
device_architecture() {
    capability=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d .)
    case $capability in
    '' | *[!0-9]*) echo "80" ;;
    90) echo "90a-real" ;;
    *) echo "$capability-real" ;;
    esac
}

# Whether a device with a driver is here.
has_cuda_device() { command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q '^GPU '; }

# CMake's options for auto, on or off. auto: where a CUDA compiler and a device are, for that device.
cuda_options() {
    case ${1:-auto} in
    off) echo "-DKAKEYA_CUDA=OFF" ;;
    on) echo "-DKAKEYA_CUDA=ON" ;;
    auto)
        if has_cuda_device && nvcc=$(find_nvcc); then
            echo "-DKAKEYA_CUDA=ON -DKAKEYA_CUDA_ARCHITECTURES=$(device_architecture) -DCUDAToolkit_ROOT=${nvcc%/bin/nvcc}"
        fi
        ;;
    *)
        echo "CUDA=$1 is none of auto, on, off" >&2
        return 2
        ;;
    esac
}
