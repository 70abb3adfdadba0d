// An MCP server of the official SDKs for TypeScript, unmodified: 1 is @modelcontextprotocol/sdk, with sessions, and 2
// @modelcontextprotocol/server, which has none over HTTP.
//
// usage: mcp_server.mjs 1|2 stdio
//        mcp_server.mjs 1|2 http [TOKEN]
//
// What it writes, how it ends and its tools are those of python/mcp_server.py.
import { createServer } from 'node:http'
import { once } from 'node:events'
import { randomUUID } from 'node:crypto'
import { setTimeout } from 'node:timers/promises'
import { z } from 'zod'

const [sdk, way, token] = process.argv.slice(2)
const two = sdk === '2'
const [mcp, stdio, http] = await Promise.all(two
  ? ['server', 'server/stdio', 'node'].map((m) => import('@modelcontextprotocol/' + m))
  : ['mcp', 'stdio', 'streamableHttp'].map((m) => import(`@modelcontextprotocol/sdk/server/${m}.js`)))

const log = { cancelled: 0, calls: 0 }
let description = 'Gives the text back.'
const text = (text, more) => ({ content: [{ type: 'text', text }], ...more })
const structured = (structuredContent) => text(JSON.stringify(structuredContent), { structuredContent })
const number = z.number().int()
const answer = { type: 'object', properties: { answer: { type: 'string' } }, required: ['answer'] }
let announce = () => {}

function server() {
  const instructions = 'Tools that test what lies between.'
  const s = new mcp.McpServer({ name: 'workshop', version: '1.0.0' }, { instructions })
  // The context of a call has other members in the two versions.
  const tool = (name, description, inputs, work, output) => s.registerTool(name, {
    description, inputSchema: z.object(inputs), ...(output && { outputSchema: z.object(output) }),
  }, (args, extra) => {
    const { signal, _meta } = two ? extra.mcpReq : extra
    const notify = two ? extra.mcpReq.notify : extra.sendNotification
    return work(args, {
      signal, responses: two ? extra.mcpReq.inputResponses : undefined,
      progress: async (progress, message) => _meta?.progressToken === undefined ? undefined : notify({
        method: 'notifications/progress', params: { progressToken: _meta.progressToken, progress, message },
      }),
    })
  })
  const called = (f) => async (args, context) => {
    log.calls++
    return f(args, context)
  }
  const sum = called(({ a, b }) => structured({ sum: a + b }))
  tool('add', 'Adds two numbers.', { a: number, b: number }, sum, { sum: number })
  const echo = tool('echo', description, { text: z.string() }, called(({ text: t }) => text(t)))
  tool('slow', 'Takes so many steps.', { steps: number }, called(async ({ steps }, { progress }) => {
    for (let i = 1; i <= steps; i++) {
      await progress(i, `step ${i} of ${steps}`)
      await setTimeout(50)
    }
    return text(`took ${steps} steps`)
  }))
  tool('hold', 'Waits until it is cancelled.', {}, called(async (_, { signal, progress }) => {
    const stopped = once(signal, 'abort')
    await progress(1, 'holding')
    await stopped
    log.cancelled++
    return text('stopped')
  }))
  tool('fail', 'Fails.', { text: z.string() }, called(({ text: t }) => text(t, { isError: true })))
  tool('ask', 'Asks back.', { question: z.string() }, async ({ question: message }, { responses }) => {
    const params = { message, requestedSchema: answer }
    const outcome = two ? responses?.q : await s.server.elicitInput(params)
    if (!outcome) return mcp.inputRequired({ inputRequests: { q: mcp.inputRequired.elicit(params) } })
    log.calls++
    return text(outcome.action === 'accept' ? 'got ' + outcome.content.answer : outcome.action)
  })
  tool('big', 'Gives so many characters.', { size: number }, called(({ size }) => text('x'.repeat(size))))
  tool('change', 'Changes the description of echo.', { text: z.string() }, ({ text: t }) => {
    description = t
    echo.update({ description })
    announce()
    return text('changed')
  })
  tool('log', 'Tells what happened.', {}, () => structured(log), { cancelled: number, calls: number })
  return s
}

if (way === 'stdio') {
  if (two) stdio.serveStdio(server)
  else await server().connect(new stdio.StdioServerTransport())
} else {
  const sessions = new Map()
  const one = async (req, res) => {
    let transport = sessions.get(req.headers['mcp-session-id'])
    if (!transport) {
      transport = new http.StreamableHTTPServerTransport({
        sessionIdGenerator: randomUUID, onsessioninitialized: (id) => { sessions.set(id, transport) },
      })
      await server().connect(transport)
    }
    await transport.handleRequest(req, res)
  }
  let handle = one
  if (two) {
    const handler = mcp.createMcpHandler(server)
    announce = () => handler.notify.toolsChanged()
    handle = http.toNodeHandler(handler)
  }
  const listener = createServer((req, res) => {
    const known = !token || req.headers.authorization === `Bearer ${token}`
    if (known) void handle(req, res)
    else res.writeHead(401, { 'WWW-Authenticate': 'Bearer' }).end()
  }).listen(0, '127.0.0.1')
  await once(listener, 'listening')
  process.stdout.write(JSON.stringify({ url: `http://127.0.0.1:${listener.address().port}/mcp` }) + '\n')
  process.stdin.resume().on('end', () => process.exit(0))
}
