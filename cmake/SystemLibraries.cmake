# Libraries from the distribution's packages; scripts/setup.sh installs them, third_party/README.md says why each is here.
find_package(Threads REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(spdlog REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(CLI11 REQUIRED)
find_package(ZLIB REQUIRED)
find_path(TITAN_TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
find_path(TITAN_PCRE2_INCLUDE pcre2.h REQUIRED)
find_library(TITAN_PCRE2 pcre2-8 REQUIRED)
find_library(TITAN_ZSTD zstd REQUIRED)
find_path(TITAN_XXHASH_INCLUDE xxhash.h REQUIRED)
find_library(TITAN_LIBDEFLATE deflate REQUIRED)
find_library(TITAN_UTF8PROC utf8proc REQUIRED)

# LibTorch ships another fmt in its own include folder. The compiler ignores -I/usr/include, so a folder of links to the
# distribution's fmt and spdlog goes before every system include: all of this project sees one fmt.
set(TITAN_INCLUDE_FIRST ${CMAKE_CURRENT_BINARY_DIR}/include-first)
file(MAKE_DIRECTORY ${TITAN_INCLUDE_FIRST})
find_path(TITAN_FMT_INCLUDE fmt/core.h REQUIRED PATHS /usr/include)
find_path(TITAN_SPDLOG_INCLUDE spdlog/spdlog.h REQUIRED PATHS /usr/include)
file(CREATE_LINK ${TITAN_FMT_INCLUDE}/fmt ${TITAN_INCLUDE_FIRST}/fmt SYMBOLIC)
file(CREATE_LINK ${TITAN_SPDLOG_INCLUDE}/spdlog ${TITAN_INCLUDE_FIRST}/spdlog SYMBOLIC)
target_include_directories(titan_compiler BEFORE INTERFACE $<BUILD_INTERFACE:${TITAN_INCLUDE_FIRST}>)
