// Names from files as they may stand in an error message: quoted, one line, bounded, nothing a terminal would act on.
#pragma once

#include <string>
#include <string_view>

namespace scaledmm {

// "name" in double quotes. Control characters (C0, DEL, C1), quotes and backslashes are escaped, bytes that are not
// UTF-8 too; a name of more than 200 bytes is cut, with its length: "aaa..." (5000 bytes).
std::string quote(std::string_view text);

// The same without the quotes, for a path at the start of a message.
std::string escape(std::string_view text);

}  // namespace scaledmm
