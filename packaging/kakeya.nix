# Builds the program of a checkout with the libraries of nixpkgs: nix-build -E 'with import <nixpkgs> {}; callPackage ./packaging/kakeya.nix {}'
# The CPU backend alone; a build with CUDA is made by `make` (docs/reference/limits.md).
{ lib, stdenv, cmake, ninja, pkg-config, cjson, giflib, grpc, hwloc, libedit, libevent, libjpeg, libsamplerate, libsndfile, libspng
, liburing, libwebp, mpg123, openssl, protobufc, sqlite, xxHash, yajl, zeromq, zlib }:

stdenv.mkDerivation {
  pname = "kakeya";
  version = "0.3.0";
  src = lib.cleanSource ../.;

  nativeBuildInputs = [ cmake ninja pkg-config protobufc ];
  buildInputs = [
    cjson
    giflib
    grpc
    hwloc
    libedit
    libevent
    libjpeg
    libsamplerate
    libsndfile
    libspng
    liburing
    libwebp
    mpg123
    openssl
    protobufc
    sqlite
    xxHash
    yajl
    zeromq
    zlib
  ];
  cmakeFlags = [ "-DKAKEYA_CUDA=OFF" "-DKAKEYA_MLX=OFF" "-DKAKEYA_SERVE=ON" "-DKAKEYA_TESTS=OFF" ];

  meta = {
    description = "Inference engine and server for Gemma 4 with bounded, measured K/V memory";
    homepage = "https://kakeya.invalid";
    license = lib.licenses.mit;
    mainProgram = "kakeya";
    platforms = lib.platforms.linux;
  };
}
