# Builds the program of a checkout with Homebrew's libraries (docs/guide/mac.md). No address of the project is public yet: the checkout, or a
# release's archive, is named by HOMEBREW_KAKEYA_SOURCE.
class Kakeya < Formula
  desc "Inference engine and server for Gemma 4 with bounded, measured K/V memory"
  homepage "https://kakeya.invalid"
  license "MIT"
  head ENV.fetch("HOMEBREW_KAKEYA_SOURCE", "https://kakeya.invalid/kakeya.git"), using: :git, branch: "main"

  depends_on "cmake" => :build
  depends_on "ninja" => :build
  depends_on "pkgconf" => :build
  depends_on "cjson"
  depends_on "giflib"
  depends_on "grpc"
  depends_on "hwloc"
  depends_on "jpeg-turbo"
  depends_on "libevent"
  depends_on "libsamplerate"
  depends_on "libsndfile"
  depends_on "libspng"
  depends_on :macos => :sonoma
  depends_on "mlx" if Hardware::CPU.arm?
  depends_on "mpg123"
  depends_on "openssl@3"
  depends_on "protobuf-c"
  depends_on "sqlite"
  depends_on "webp"
  depends_on "xxhash"
  depends_on "yajl"
  depends_on "zeromq"

  uses_from_macos "libedit"
  uses_from_macos "zlib"

  def install
    mlx = ["-DKAKEYA_MLX=OFF"]
    mlx = ["-DKAKEYA_MLX=ON", "-DKAKEYA_MLX_ROOT=#{Formula["mlx"].opt_prefix}"] if Hardware::CPU.arm?
    system "cmake", "-S", ".", "-B", "build", "-G", "Ninja", "-DKAKEYA_CUDA=OFF", "-DKAKEYA_SERVE=ON", "-DKAKEYA_TESTS=OFF",
           *mlx, *std_cmake_args
    system "cmake", "--build", "build"
    system "cmake", "--install", "build"
  end

  # libmlx promises nothing between two versions, and the program refuses another one than it was built for.
  def caveats
    "When Homebrew has brought another mlx, run: brew reinstall --HEAD kakeya"
  end

  test do
    (testpath/"ids.json").write "[2, 100, 200, 300]"
    assert_match "tokens", shell_output("#{bin}/kakeya score --backend cpu --ids-file ids.json")
    assert_match "mlx/", shell_output("#{bin}/kakeya run --backend mlx --raw --max-tokens 1 --json hello") if Hardware::CPU.arm?
  end
end
