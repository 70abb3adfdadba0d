// Calls an agent with the clients of the SDK, the way its documentation shows.
//
// usage: samvad_client.mjs key KEYS_DIR
//        samvad_client.mjs call|task|stream KEYS_DIR URL SKILL PAYLOAD [ORIGIN]
//
// With ORIGIN, the browser's client calls from a page of that origin. Writes one
// line of JSON: the public key, or what the client gave, or the error that it
// threw.
import { AgentClient, SamvadError, encodePublicKey, loadKeypair } from '@samvad-protocol/sdk'
import { BrowserAgentClient } from '@samvad-protocol/sdk/browser'
import { becomePage } from './page.mjs'

const [what, keysDir, url, skill, payload, origin] = process.argv.slice(2)

async function connect() {
  if (!origin) return await AgentClient.from(url, { keysDir })
  becomePage(origin)
  return await BrowserAgentClient.from(url, { keypair: await loadKeypair(keysDir, 'key-current') })
}

async function ask() {
  if (what === 'key') {
    return { key: encodePublicKey((await AgentClient.prepare({ keysDir })).publicKey) }
  }
  const client = await connect()
  const content = JSON.parse(payload)
  switch (what) {
    case 'call':
      return { result: await client.call(skill, content) }
    case 'task':
      return { result: await client.taskAndPoll(skill, content, { intervalMs: 50, timeoutMs: 20_000 }) }
    case 'stream': {
      const chunks = []
      for await (const chunk of client.stream(skill, content)) chunks.push(chunk)
      return { chunks }
    }
  }
  throw new Error(`unknown command ${what}`)
}

let answer
try {
  answer = await ask()
} catch (e) {
  answer = { error: { code: e instanceof SamvadError ? e.code : e.name, message: e.message } }
}
console.log(JSON.stringify(answer))
