// Last words of a process that reads a mapped file of which a part is gone.
#pragma once

#include <string>

namespace strata {

// From now on, where a page of a mapped file cannot be had, because the file became shorter or its
// disk failed, the process ends by SIGBUS, as it would anyway, but with words on standard error
// that name `path` and say what to do. Of several files, the one told of last is named. One thread
// at a time.
void TellOfLostPages(const std::string& path);

}  // namespace strata
