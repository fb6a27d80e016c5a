# `make package`: what is installed, as Debian packages, one for each component. Their dependencies are those that the linker found, what
# the program loads when it needs it, and each other.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME kakeya)
set(CPACK_PACKAGE_CONTACT "The kakeya authors <authors@kakeya.invalid>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "inference engine and server for Gemma 4 with bounded, measured K/V memory")
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE GROUP_READ GROUP_EXECUTE WORLD_READ WORLD_EXECUTE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_COMPONENTS_GROUPING IGNORE)
set(CPACK_COMPONENTS_ALL program models)
if(TARGET kakeya_shared)
  list(APPEND CPACK_COMPONENTS_ALL library development)
endif()
if(TARGET kakeya_cuda_plugin)
  list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_SOURCE_DIR}/packaging/debian_files.cmake)
set(CPACK_KAKEYA_SOURCE ${CMAKE_SOURCE_DIR}) # for that script
set(CPACK_KAKEYA_STRIP ${CMAKE_STRIP})
set(CPACK_DEBIAN_COMPRESSION_TYPE gzip) # most of it is weights, which xz takes minutes to shrink by nothing
set(CPACK_OUTPUT_FILE_PREFIX ${CMAKE_BINARY_DIR}/packages)

# The Debian package of a file that the program loads, or "".
function(kakeya_owner file out)
  get_filename_component(file ${file} REALPATH)
  execute_process(COMMAND dpkg-query -S ${file} OUTPUT_VARIABLE owner ERROR_QUIET RESULT_VARIABLE unknown)
  set(${out} "" PARENT_SCOPE)
  if(NOT unknown AND owner MATCHES "^([^:, ]+)")
    set(${out} ${CMAKE_MATCH_1} PARENT_SCOPE)
  endif()
endfunction()

set(same "(= ${PROJECT_VERSION})")

set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME kakeya)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_DESCRIPTION "${CPACK_PACKAGE_DESCRIPTION_SUMMARY}
Runs Gemma 4 models on a CPU, or on an NVIDIA GPU with the package
kakeya-cuda; decodes losslessly faster than one token at a time, and answers
the APIs of OpenAI's and other clients.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
if(KAKEYA_HAVE_GRPC) # which the linker does not see
  kakeya_owner(${GRPC_LIBRARY} CPACK_DEBIAN_PROGRAM_PACKAGE_DEPENDS)
endif()
set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS "kakeya-models-demo")
if(KAKEYA_HAVE_ZMQ) # nor this one, which few need
  kakeya_owner(${ZMQ_LIBRARY} owner)
  if(owner)
    string(APPEND CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS ", ${owner}")
  endif()
endif()
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "kakeya-cuda ${same}, git (>= 1:2.29), openssh-client (>= 1:8.2)") # kakeya remote

set(CPACK_DEBIAN_MODELS_PACKAGE_NAME kakeya-models-demo)
set(CPACK_DEBIAN_MODELS_PACKAGE_SECTION science)
set(CPACK_DEBIAN_MODELS_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_MODELS_PACKAGE_ENHANCES kakeya)
set(CPACK_DEBIAN_MODELS_DESCRIPTION "demo model of kakeya, with its drafter and its f_theta
A model of 19 million parameters that continues Python, which kakeya uses
when no other is named, a DFlash drafter and an f_theta for it.")

set(CPACK_DEBIAN_LIBRARY_PACKAGE_NAME libkakeya0)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_LIBRARY_PACKAGE_SUGGESTS "kakeya-cuda ${same}")
set(CPACK_DEBIAN_LIBRARY_DESCRIPTION "inference of Gemma 4 models with bounded K/V memory, as a library
The engine of kakeya: weights on a device, and sessions that answer from
them together.")

set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libkakeya-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "libkakeya0 ${same}")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SUGGESTS "kakeya-models-demo")
set(CPACK_DEBIAN_DEVELOPMENT_DESCRIPTION "headers, static library and examples of libkakeya
What programs in C and C++ need that use the engine of kakeya.")

set(CPACK_DEBIAN_CUDA_PACKAGE_NAME kakeya-cuda)
set(CPACK_DEBIAN_CUDA_PACKAGE_SECTION science)
set(CPACK_DEBIAN_CUDA_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_CUDA_PACKAGE_DEPENDS "kakeya ${same} | libkakeya0 ${same}")
set(CPACK_DEBIAN_CUDA_PACKAGE_ENHANCES "kakeya, libkakeya0")
set(CPACK_DEBIAN_CUDA_DESCRIPTION "NVIDIA GPUs for kakeya
A plugin that kakeya and libkakeya0 load, and use where there is an NVIDIA
driver and a GPU of compute capability 8.0 or later.")
set(CPACK_KAKEYA_PACKAGES "") # in the order of the components, for the script above
foreach(component IN LISTS CPACK_COMPONENTS_ALL)
  string(TOUPPER ${component} upper)
  list(APPEND CPACK_KAKEYA_PACKAGES ${CPACK_DEBIAN_${upper}_PACKAGE_NAME})
endforeach()
include(CPack)
