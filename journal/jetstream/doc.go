// Package jetstream keeps a journal on a NATS cluster that several hubs share. It
// uses nothing but the API that the servers have for every client (NATS 2.12 or
// later). An example: a hub calls Append(ctx, 0, 41, two records). The store sends
// them as one atomic batch whose first message says that the stream must end at
// 41. The stream's leader has a majority store them, or refuses them all because
// another hub was sooner.
//
// # Streams
//
//	PREFIX_LOG_n       partition n, on PREFIX.log.n.r, and PREFIX.log.n.t.TAG where a record has a tag
//	KV_PREFIX_remains  bucket: what is left of erased records, as n.BLOCK.SEQUENCE; first.n; tag.n.TAG
//	KV_PREFIX_state    bucket: the state, as BUCKET.KEY; its metadata hold the store.Meta; made last
//
// A record's sequence is its message's. In keys, what stands between slashes is a
// token each, with other bytes than letters, digits and "-" as "_" and two
// hexadecimal digits; so a prefix that ends in "/" is filtered by the servers. In
// tags a dot is "=". A revision is twice the message's sequence, and one more for a
// removal.
//
// # What an expected sequence means
//
// Read in the server's source, 2.15.2 (checkMsgHeadersPreClusteredProposal,
// recalculateClusteredSeq, applyStreamMsgOp, raft's switchToLeader):
//
//   - The leader compares Nats-Expected-Last-Sequence with the stream's end as it
//     will be when all that it has proposed is stored, under the lock under which it
//     proposes. A follower compares nothing: it stores what a majority has, in the
//     order of the proposals.
//   - A server is the stream's leader only when it has stored everything that was
//     in its log when it was elected. What a leader before it had proposed is by then
//     either stored or never will be: its proposals bear an older term.
//   - So a message that expects N is stored as N+1 or not at all, whenever it
//     arrives, also hours later out of a frozen server's buffers. A repeat of it
//     cannot be stored beside it.
//   - Several messages that expect N, N+1, … each by itself are not safe. If another
//     hub stores one record at N+1, the first is refused, and the second finds just
//     the end it expects: it would be stored behind a record that its hub has not
//     seen. In an atomic batch only the first message may expect a sequence, the
//     leader compares it when it has all of them, and they are proposed as one. On
//     three servers a batch of 8, 64 or 256 records was 0.7 to 1.25 times as fast as the
//     same messages by themselves. So one record goes alone, and more are a batch.
//   - A batch whose leader changes before its end is refused as incomplete. It is
//     sent again under another id, for parts of two attempts must not become one.
//
// When an answer does not come, the same call is tried again. If that is refused
// because the stream ends elsewhere, the store looks who has the place: each call
// marks its first message (Parley-Call). It is its own: success. It is another's: no
// attempt was stored, and none ever will be. Only where the servers stay silent until
// the timeout the answer is ErrUnknown. Values are compared with the last sequence of
// their key in the same way, also where the caller expects nothing: a late copy of an
// old value could else replace a newer one.
//
// # Reading
//
// Pages come from the nearest server that has the stream, which may lag behind.
// Where a page is not full, the leader has the last word; what this store has told
// before is waited for, and Range waits until that server has what the leader has.
// Get, Tagged and Span ask the leader. Follow and FollowState have a consumer in one
// server's memory, and make another one when its heartbeats stay away; a server drops
// the old one after a minute. Of changes of one key that follow each other at once
// FollowState may tell only the last: the servers keep one value of each key.
//
// # What erasure leaves
//
// Replace stores the remains, then has the record's message overwritten: when it
// returns, by the leader and the server that is read from, and by the others as they
// come to it. Where that server does not come to it within two seconds, Replace gives
// an error, and may be repeated. What is not erased at once:
//
//   - The log by which the servers replicate a stream (its raft group, below _js_)
//     has the message until the server has made a snapshot of the stream and dropped
//     what it covers: after 8 MB or 65,536 entries, or every two to three minutes when
//     something has changed. The log's last file, of 4 MB, may keep parts until it is
//     full. The space is freed, not overwritten.
//   - Values of the state that were replaced or removed stay in the bucket's files
//     until the server rewrites the block of 4 MB that holds them, which it does when
//     half of it is unused, and not with the last block. There is no request for it:
//     Scrub erases values past their end, and nothing else.
//   - Backups of the servers, and what a file system or a flash disk keeps.
//
// A journal that has a key seals records and values, so that none of these is
// readable without it.
package jetstream
