# To be sourced: libmlx, which the MLX backend is built on.

# Newer ones may change numbers, and C++ promises nothing between two: this is the one that is tested.
mlx_version=0.32.4

# libmlx into BUILD/mlx, where CMake looks: 10 MB on Linux, where it computes on the CPU alone; on a Mac the one with Metal.
install_mlx() { # build folder
    [ ! -f "$1/mlx/mlx-$mlx_version" ] || return 0
    package=mlx-cpu
    [ "$(uname -s)" != Darwin ] || package=mlx-metal
    python3 -m pip --version >/dev/null 2>&1 || return 1
    rm -rf "$1/mlx"
    # by name: the pip of macOS's own tools does not know the option
    PIP_ROOT_USER_ACTION=ignore python3 -m pip install --quiet --disable-pip-version-check --no-deps --target "$1/mlx" \
        "$package==$mlx_version" && touch "$1/mlx/mlx-$mlx_version"
}

# CMake's options for auto, on or off. auto: where libmlx is installed.
mlx_options() { # auto|on|off, build folder
    case ${1:-auto} in
    off) echo "-DKAKEYA_MLX=OFF" ;;
    on)
        install_mlx "$2" || {
            echo "MLX=on: libmlx $mlx_version could not be installed into $2/mlx (python3 with pip, and the network)" >&2
            return 2
        }
        echo "-DKAKEYA_MLX=ON"
        ;;
    auto) ;;
    *)
        echo "MLX=$1 is none of auto, on, off" >&2
        return 2
        ;;
    esac
}

# A BLAS to be loaded before the one that libmlx brings on Linux.
find_openblas() {
    ldconfig -p 2>/dev/null | sed -n 's/.*libopenblas\.so\.0 .*=> //p' | head -n 1
}
