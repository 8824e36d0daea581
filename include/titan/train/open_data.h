// Opens what a job reads: its corpora and its chat template, from the descriptions that `job` makes of them.
#pragma once

#include <memory>
#include <string>

#include "titan/job/job.h"

namespace titan {

/// The chunks that training reads: of one corpus or a mixture, whole or this rank's part, in order or shuffled. Sets
/// `description` to the names of the sources. Throws Error(bad_data).
std::unique_ptr<ChunkSource> open_training_chunks(const JobConfig& config, const MeshPlace& place,
                                                  const std::shared_ptr<const Tokenizer>& tokenizer,
                                                  const BatchOptions& options, std::string& description);

/// The chunks of one validation. Sets `description` to what they are. Throws Error(bad_data).
std::unique_ptr<ChunkSource> open_validation_chunks(const JobConfig& config, const MeshPlace& place,
                                                    const std::shared_ptr<const Tokenizer>& tokenizer,
                                                    const BatchOptions& options, std::string& description);

/// The documents of the training corpus that this rank reads.
std::unique_ptr<DocumentSource> open_training_documents(const JobConfig& config, const MeshPlace& place,
                                                        const Tokenizer& tokenizer);

/// The template for the conversations of a dataset "chat". Throws Error(bad_config) if the configured template does not
/// exist or the tokenizer lacks its tokens.
std::shared_ptr<const ChatTemplate> open_chat_template(const JobConfig& config,
                                                       const std::shared_ptr<const Tokenizer>& tokenizer);

}  // namespace titan
