# The libraries that the program is made of beside its own code, in one table: name, version that it is compiled against, license (SPDX),
# and how it is there: "" (linked), "compiled in", or "loaded when it is needed". `kakeya --version --verbose` and the bill of materials
# are made from it.
set(KAKEYA_LIBRARY_TABLE "")
function(kakeya_library name version license role)
  if(NOT version)
    set(version unknown)
  endif()
  set(KAKEYA_LIBRARY_TABLE ${KAKEYA_LIBRARY_TABLE} "${name}|${version}|${license}|${role}" PARENT_SCOPE)
endfunction()

kakeya_library(cJSON "${CJSON_VERSION}" MIT "")
kakeya_library(yajl "${YAJL_VERSION}" ISC "")
kakeya_library(hwloc "${HWLOC_VERSION}" BSD-3-Clause "")
kakeya_library(zlib "${ZLIB_VERSION}" Zlib "")
kakeya_library(libedit "${EDIT_VERSION}" BSD-3-Clause "")
kakeya_library(OpenSSL "${CRYPTO_VERSION}" Apache-2.0 "")
kakeya_library(libspng "${SPNG_VERSION}" BSD-2-Clause "")
kakeya_library(libjpeg-turbo "${JPEG_VERSION}" "IJG AND BSD-3-Clause" "")
kakeya_library(libwebp "${WEBP_libwebp_VERSION}" BSD-3-Clause "")
kakeya_library(giflib "${GIF_VERSION}" MIT "")
kakeya_library(libsndfile "${SNDFILE_VERSION}" LGPL-2.1-or-later "")
kakeya_library(libmpg123 "${MPEG_VERSION}" LGPL-2.1-only "")
kakeya_library(libsamplerate "${SAMPLERATE_VERSION}" BSD-2-Clause "")
kakeya_library(xxHash "${XXHASH_VERSION}" BSD-2-Clause "compiled in")
if(KAKEYA_HAVE_URING)
  kakeya_library(liburing "${URING_VERSION}" "LGPL-2.1-or-later OR MIT" "")
endif()
if(KAKEYA_SERVE)
  kakeya_library(libevent "${EVENT_libevent_VERSION}" BSD-3-Clause "")
  kakeya_library(SQLite "${SQLITE_VERSION}" blessing "")
endif()
if(KAKEYA_HAVE_GRPC)
  kakeya_library(protobuf-c "${PROTOBUF_C_VERSION}" BSD-2-Clause "")
  get_filename_component(folder "${GRPC_LIBRARY}" DIRECTORY)
  set(version "")
  if(EXISTS ${folder}/pkgconfig/grpc.pc)
    file(STRINGS ${folder}/pkgconfig/grpc.pc version REGEX "^Version:")
    string(REGEX REPLACE "^Version: *" "" version "${version}")
  endif()
  kakeya_library(gRPC "${version}" Apache-2.0 "loaded when it is needed")
endif()
if(KAKEYA_HAVE_ZMQ)
  kakeya_library(libzmq "${ZMQ_VERSION}" LGPL-3.0-or-later "loaded when it is needed")
endif()
if(KAKEYA_HAVE_CUDA)
  kakeya_library(cudart "${CUDAToolkit_VERSION}" LicenseRef-NVIDIA-CUDA "compiled in")
endif()
if(KAKEYA_HAVE_MLX)
  kakeya_library(mlx "${KAKEYA_MLX_VERSION}" MIT "")
endif()

set(KAKEYA_LIBRARY_ROWS "")
set(KAKEYA_COMPONENTS "")
set(KAKEYA_NEEDS "")
foreach(row IN LISTS KAKEYA_LIBRARY_TABLE)
  string(REPLACE "|" ";" row "${row}")
  list(GET row 0 name)
  list(GET row 1 version)
  list(GET row 2 license)
  list(GET row 3 role)
  string(APPEND KAKEYA_LIBRARY_ROWS " \\\n    X(\"${name}\", \"${version}\", \"${license}\", \"${role}\")")
  # the same as a component of the bill of materials
  string(TOLOWER "pkg:generic/${name}@${version}" purl)
  set(said "\"license\": {\"id\": \"${license}\"}")
  if(license MATCHES " (AND|OR) ")
    set(said "\"expression\": \"${license}\"")
  elseif(license MATCHES "^LicenseRef-(.*)")
    set(said "\"license\": {\"name\": \"${CMAKE_MATCH_1}\"}")
  endif()
  set(scope required)
  if(role MATCHES "^loaded")
    set(scope optional)
  endif()
  if(NOT role)
    set(role linked)
  endif()
  string(APPEND KAKEYA_COMPONENTS "${comma}
    {\"type\": \"library\", \"bom-ref\": \"${purl}\", \"name\": \"${name}\", \"version\": \"${version}\", \"scope\": \"${scope}\",
     \"licenses\": [{${said}}], \"purl\": \"${purl}\", \"properties\": [{\"name\": \"kakeya:linkage\", \"value\": \"${role}\"}]}")
  string(APPEND KAKEYA_NEEDS "${comma}\"${purl}\"")
  set(comma ", ")
endforeach()
# The bill of materials, CycloneDX 1.5. The build adds the revision of the sources (tools/facts.cmake).
file(WRITE ${CMAKE_BINARY_DIR}/generated/kakeya.cdx.json.in "\
{
  \"bomFormat\": \"CycloneDX\", \"specVersion\": \"1.5\", \"version\": 1,
  \"metadata\": {
    \"component\": {\"type\": \"application\", \"bom-ref\": \"kakeya\", \"name\": \"kakeya\", \"version\": \"${PROJECT_VERSION}\",
      \"licenses\": [{\"license\": {\"id\": \"MIT\"}}],
      \"properties\": [{\"name\": \"kakeya:revision\", \"value\": \"@revision@\"}]}
  },
  \"components\": [${KAKEYA_COMPONENTS}
  ],
  \"dependencies\": [{\"ref\": \"kakeya\", \"dependsOn\": [${KAKEYA_NEEDS}]}]
}
")

# How it is compiled. Folders in the flags, which are told to forget them, are nobody's business.
string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
string(REGEX REPLACE "-f[a-z]*-prefix-map=[^ ]*" "" flags "${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}}")
foreach(option SANITIZE THREAD_SANITIZE COVERAGE FUZZ)
  if(KAKEYA_${option})
    string(APPEND flags " (KAKEYA_${option})")
  endif()
endforeach()
string(REGEX REPLACE "[\"\\]" "" flags "${flags}")
string(REGEX REPLACE "  +" " " flags "${flags}")
string(STRIP "${flags}" flags)
file(CONFIGURE OUTPUT ${CMAKE_BINARY_DIR}/generated/build/kakeya_build.h CONTENT "\
#define KAKEYA_BUILD_COMPILER \"${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}\"
#define KAKEYA_BUILD_TYPE \"${CMAKE_BUILD_TYPE}\"
#define KAKEYA_BUILD_FLAGS \"${flags}\"
#define KAKEYA_BUILD_TARGET \"${CMAKE_SYSTEM_NAME}, ${CMAKE_SYSTEM_PROCESSOR}\"
#define KAKEYA_BUILD_LIBRARIES(X)${KAKEYA_LIBRARY_ROWS}
")
