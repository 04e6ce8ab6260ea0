# scaledmm_room(NAME SOURCES...): an object library of one room of the library, with the project's warnings.
# scaledmm_warnings(TARGET): the same warnings for another target.
include_guard(GLOBAL)

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release)
endif()

function(scaledmm_warnings target)
  target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wshadow -Wno-unknown-pragmas
                                           $<$<BOOL:${SCALEDMM_WERROR}>:-Werror>)
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # g++'s own AVX-512 headers read undefined vectors on purpose. The three others misfire on std::string's operator+
    # (GCC bugs 105329 and 105651).
    target_compile_options(${target} PRIVATE -Wno-uninitialized -Wno-maybe-uninitialized -Wno-psabi -Wno-restrict
                                             -Wno-stringop-overflow -Wno-array-bounds)
  endif()
  if(SCALEDMM_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${SCALEDMM_SANITIZE} -fno-omit-frame-pointer
                                             -fno-sanitize-recover=all)
    target_link_options(${target} PUBLIC -fsanitize=${SCALEDMM_SANITIZE})
  endif()
endfunction()

function(scaledmm_room name)
  add_library(${name} OBJECT ${ARGN})
  target_link_libraries(${name} PUBLIC scaledmm_headers)
  set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON VISIBILITY_INLINES_HIDDEN ON)
  scaledmm_warnings(${name})
endfunction()
