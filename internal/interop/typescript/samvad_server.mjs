// Runs an agent with the SDK's server until its input ends.
//
// usage: samvad_server.mjs KEYS_DIR PEER_ID PEER_KEY
//
// Writes one line of JSON when it listens: its URL, its identity and its key.
import { createServer } from 'node:net'
import { Agent, decodePublicKey } from '@samvad-protocol/sdk'
import { z } from 'zod'

const [keysDir, peerID, peerKey] = process.argv.slice(2)

// The card names the port, so that it must be known before the agent listens.
const port = await new Promise((resolve, reject) => {
  const probe = createServer().on('error', reject)
  probe.listen(0, '127.0.0.1', () => {
    const { port } = probe.address()
    probe.close(() => resolve(port))
  })
})
const url = `http://127.0.0.1:${port}`

console.log = console.error // the SDK says there where it listens
const agent = new Agent({
  name: 'scripter',
  description: 'An agent of the TypeScript SDK',
  url,
  keysDir,
  rateLimit: { requestsPerMinute: 10_000, requestsPerSender: 10_000 },
})
const shape = {
  description: 'Repeats a text',
  input: z.object({ text: z.string(), times: z.number().default(1) }),
  output: z.object({ text: z.string(), sender: z.string() }),
  modes: ['sync', 'async', 'stream'],
  trust: 'public',
}
agent.skill('repeat', {
  ...shape,
  name: 'Repeat',
  handler: async ({ text, times }, { sender }) => ({ text: text.repeat(times), sender }),
})
agent.skill('fail', {
  ...shape,
  name: 'Fail',
  handler: async () => {
    throw new Error('secret of the handler')
  },
})
agent.trustPeer(peerID, decodePublicKey(peerKey))
const server = await agent.serve({ host: '127.0.0.1', port })
const card = await (await fetch(`${url}/.well-known/agent.json`)).json()
process.stdout.write(JSON.stringify({ url, id: card.id, key: card.publicKeys[0].key }) + '\n')
process.stdin.resume().on('end', () => server.close())
