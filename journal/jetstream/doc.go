// Package jetstream keeps a journal on a NATS cluster that several hubs share. It
// uses only the API that the servers offer to every client (NATS 2.12 or later). An
// example: a hub calls Append(ctx, 0, 41, two records). The store sends them as one
// atomic batch whose first message expects the stream to end at 41. The stream's
// leader has a majority store them, or refuses both because another hub appended
// first.
//
// # Streams
//
//	PREFIX_LOG_n       partition n, on PREFIX.log.n.r, and PREFIX.log.n.t.TAG where a record has a tag
//	KV_PREFIX_remains  bucket: the remains of erased records, as n.BLOCK.SEQUENCE; first.n; tag.n.TAG
//	KV_PREFIX_state    bucket: the state, as BUCKET.KEY; its metadata hold the store.Meta; made last
//
// A record's sequence is its message's. The parts of a key between slashes are one
// token each, in which bytes other than letters, digits and "-" are "_" and two
// hexadecimal digits; so the servers can filter by a prefix that ends in "/". In
// tags a dot becomes "=". A revision is twice the message's sequence, and one more
// for a removal.
//
// # What an expected sequence means
//
// Read in the server's source, 2.15.2 (checkMsgHeadersPreClusteredProposal,
// recalculateClusteredSeq, applyStreamMsgOp, raft's switchToLeader):
//
//   - The leader compares Nats-Expected-Last-Sequence with the end that the stream
//     will have when all the leader's proposals are stored. It does so under the
//     lock under which it proposes. A follower compares nothing: it stores the
//     messages that a majority has, in the order of the proposals.
//   - A server is the stream's leader only when it has stored everything that was
//     in its log when it was elected. By then every proposal of an earlier leader is
//     either stored or never will be: it bears an older term.
//   - So a message that expects N is stored as N+1 or not at all, whenever it
//     arrives, also hours later out of a frozen server's buffers. A repeat of it
//     cannot be stored beside it.
//   - Several single messages that expect N, N+1, … are not safe. If another hub
//     stores one record at N+1, the first message is refused, but the second finds
//     just the end that it expects: it would be stored behind a record that its hub
//     has not seen. In an atomic batch only the first message may expect a sequence.
//     The leader compares it when it has the whole batch, and makes one proposal. On
//     three servers a batch of 8, 64 or 256 records was 0.7 to 1.25 times as fast as
//     single messages. So one record is a single message, and more are a batch.
//   - If the leader changes before the end of a batch, the batch is refused as
//     incomplete. It is sent again under another id, because parts of two attempts
//     must not become one batch.
//
// Without an answer the store repeats the same call. If the repeat is refused
// because the stream ends elsewhere, the store reads the message behind the expected
// sequence. Each call marks its first message (Parley-Call). If that message has this
// call's mark, the call succeeded. If it has another, no attempt was stored, and none
// ever will be. The result is ErrUnknown only if the servers stay silent until the
// timeout. For a value, the last sequence of its key is compared in the same way,
// even if the caller expects nothing: a late copy of an old value could otherwise
// replace a newer one.
//
// # Reading
//
// Pages come from the nearest server that has the stream, which may lag behind. If
// a page is not full, the leader is asked for the rest. Reads never end before a
// sequence that this store has returned earlier, and Range waits until the server
// has caught up with the leader. Get, Tagged and Span ask the leader. Follow and
// FollowState have a consumer in one server's memory, and make a new one if its
// heartbeats stop; the server drops the old one after a minute. If a key changes
// several times in a row, FollowState may report only the last change, because the
// servers keep one value of each key.
//
// # What erasure leaves
//
// Replace stores the remains, then has the servers overwrite the record's message.
// When it returns, the leader and the server that this store reads from have done so;
// the others follow. If the server that this store reads from needs more than two
// seconds, Replace returns an error, and may be repeated. Some copies are not erased
// at once:
//
//   - The log by which the servers replicate a stream (its raft group, below _js_)
//     has the message until the server has made a snapshot of the stream and
//     dropped the entries before it: after 8 MB or 65,536 entries, or every two to
//     three minutes if the stream has changed. The log's last file, of 4 MB, may
//     keep parts until it is full. The space is freed, not overwritten.
//   - Values of the state that were replaced or removed stay in the bucket's files
//     until the server rewrites the block of 4 MB that holds them. It does so when
//     half of the block is unused, and never with the last block. No request forces
//     a rewrite: Scrub only erases expired values.
//   - Backups of the servers, and copies that a file system or a flash disk keeps.
//
// If the journal has a key, records and values are encrypted: such copies can only be
// read with the key.
package jetstream
