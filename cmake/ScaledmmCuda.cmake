# scaledmm_find_cuda(): looks for nvcc 13 or later, its headers and the static runtime, and sets SCALEDMM_NVCC,
# SCALEDMM_CUDA_INCLUDE and SCALEDMM_CUDA_RUNTIME; empty when one is missing. Also finds what tools/cuda.sh installs.
# scaledmm_cuda_sources(TARGET [PORTABLE] SOURCES...): compiles .cu files with nvcc into a target. sm_90a code; with PORTABLE
# also PTX for 8.9 and later cards.
include_guard(GLOBAL)

function(scaledmm_find_cuda)
  file(GLOB installed ${PROJECT_SOURCE_DIR}/.cuda/lib/python3*/site-packages/nvidia/cu13)
  find_program(SCALEDMM_NVCC nvcc HINTS ENV CUDA_HOME PATHS /usr/local/cuda ${installed} PATH_SUFFIXES bin)
  if(NOT SCALEDMM_NVCC)
    return()
  endif()
  execute_process(COMMAND ${SCALEDMM_NVCC} --version OUTPUT_VARIABLE version)
  if(NOT version MATCHES "release ([0-9.]+)" OR CMAKE_MATCH_1 VERSION_LESS 13)
    message(STATUS "CUDA module: ${SCALEDMM_NVCC} is version ${CMAKE_MATCH_1}, 13 is needed")
    return()
  endif()
  file(REAL_PATH ${SCALEDMM_NVCC} nvcc)
  cmake_path(GET nvcc PARENT_PATH bin)
  cmake_path(GET bin PARENT_PATH root)
  find_path(SCALEDMM_CUDA_INCLUDE cuda_runtime_api.h PATHS ${root}/include ${root}/targets/x86_64-linux/include
            NO_DEFAULT_PATH)
  find_library(SCALEDMM_CUDA_RUNTIME libcudart_static.a PATHS ${root}/lib64 ${root}/lib
               ${root}/targets/x86_64-linux/lib NO_DEFAULT_PATH)
endfunction()

# -fmad=false: no fusing of a * b + c that the source did not ask for, as for the library.
set(SCALEDMM_NVCC_FLAGS -std=c++20 -O3 -fmad=false --expt-relaxed-constexpr
    -Xcompiler=-fPIC,-fvisibility=hidden,-Wall,-Wextra,-Wno-missing-field-initializers
    -I${PROJECT_SOURCE_DIR}/include -I${PROJECT_SOURCE_DIR}/src CACHE INTERNAL "Flags of every .cu file")

function(scaledmm_cuda_sources target)
  cmake_parse_arguments(arg "PORTABLE" "" "" ${ARGN})
  set(architectures -gencode arch=compute_90a,code=sm_90a)
  if(arg_PORTABLE)
    list(APPEND architectures -gencode arch=compute_89,code=compute_89)
  endif()
  set(warnings $<$<BOOL:${SCALEDMM_WERROR}>:-Werror=all-warnings>)
  foreach(source ${arg_UNPARSED_ARGUMENTS})
    set(object ${CMAKE_CURRENT_BINARY_DIR}/${source}.o)
    add_custom_command(
      OUTPUT ${object}
      COMMAND ${SCALEDMM_NVCC} ${SCALEDMM_NVCC_FLAGS} ${warnings} ${architectures} -ccbin ${CMAKE_CXX_COMPILER}
              -MD -MF ${object}.d -MT ${object} -c ${CMAKE_CURRENT_SOURCE_DIR}/${source} -o ${object}
      DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${source}
      DEPFILE ${object}.d
      COMMENT "Building CUDA object ${source}.o"
      COMMAND_EXPAND_LISTS VERBATIM)
    target_sources(${target} PRIVATE ${object})
    set_source_files_properties(${object} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endforeach()
endfunction()
