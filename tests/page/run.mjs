// Nodes and a browser for the checks of the page. STRATA_PROGRAM and STRATA_CHROMIUM name the programs, STRATA_DEMO_MODEL a
// model.
import { execFileSync, spawn } from 'node:child_process';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { chromium } from 'playwright-core';

const program = process.env.STRATA_PROGRAM;
export const model = process.env.STRATA_DEMO_MODEL;
export const folder = fs.mkdtempSync(path.join(os.tmpdir(), 'strata-page-'));
const env = { ...process.env, STRATA_CONFIG: '', STRATA_KEY_FILE: path.join(folder, 'key') };
const nodes = new Set();

export const strata = (...args) => execFileSync(program, args, { env, encoding: 'utf8' });

const freePort = () => new Promise((resolve) => {
  const server = net.createServer().listen(0, '127.0.0.1', () => {
    const { port } = server.address();
    server.close(() => resolve(port));
  });
});

// A node with a name, of the cluster that `peer` is in; resolves when it listens.
export async function startNode(name, peer, options = {}) {
  const dir = options.dir || fs.mkdtempSync(path.join(folder, 'node-'));
  if (!fs.existsSync(env.STRATA_KEY_FILE)) {
    strata('key', 'new', '--data-dir', dir);
    fs.renameSync(path.join(dir, 'cluster_key'), env.STRATA_KEY_FILE);
  }
  const http = options.http || (await freePort());
  const args = ['node', '--listen', `127.0.0.1:${options.port || 0}`, '--no-mdns', '--name', name, '--data-dir', dir,
    '--http', `127.0.0.1:${http}`, ...(peer ? ['--peer', peer.address] : []), ...(options.args || [])];
  const own = { ...env, XDG_CACHE_HOME: path.join(dir, 'cache') }; // another machine has other files
  const child = spawn(program, args, { env: own, stdio: ['ignore', 'pipe', options.stderr || 'ignore'] });
  nodes.add(child);
  const lines = readline.createInterface({ input: child.stdout });
  const ready = await new Promise((resolve, reject) => {
    lines.once('line', (line) => resolve(JSON.parse(line).node));
    child.once('exit', (code) => reject(new Error(`strata node ended with ${code}`)));
  });
  const node = { ...ready, name, dir, httpPort: http, child };
  node.stop = (signal = 'SIGTERM') => new Promise((resolve) => {
    child.once('exit', () => resolve(nodes.delete(child)));
    child.kill(signal);
  });
  node.link = () => strata('page', '--data-dir', dir).trim();
  return node;
}

// A node without a key, which waits until `peer` admits it; resolves when it waits. `code` resolves with its six digits.
export async function startGuest(name, peer) {
  const address = `127.0.0.1:${await freePort()}`;
  const { STRATA_KEY_FILE: _, ...without } = env;
  const dir = fs.mkdtempSync(path.join(folder, 'node-'));
  const child = spawn(program, ['node', '--listen', address, '--no-mdns', '--name', name, '--peer', peer.address,
    '--http', `127.0.0.1:${await freePort()}`, '--data-dir', dir],
  { env: { ...without, XDG_CACHE_HOME: path.join(dir, 'cache') }, stdio: ['ignore', 'ignore', 'pipe'] });
  nodes.add(child);
  const lines = readline.createInterface({ input: child.stderr });
  const said = (words) => new Promise((resolve) => {
    lines.on('line', (line) => words.test(line) && resolve(words.exec(line)[1]));
  });
  const code = said(/The code is +(\S.*?) +:/);
  await said(/(waits) to be admitted/);
  return { address, code };
}

export async function startBrowser() {
  return chromium.launch({ executablePath: process.env.STRATA_CHROMIUM, args: ['--no-sandbox'] });
}

// A page that remembers what a user should never see.
export async function openPage(browser, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1200, height: 900 }, ...options });
  const page = await context.newPage();
  page.problems = [];
  page.on('pageerror', (error) => page.problems.push(error.message));
  page.on('dialog', (dialog) => {
    if (dialog.type() !== 'confirm') page.problems.push(`${dialog.type()}: ${dialog.message()}`);
    dialog.accept();
  });
  page.on('console', (message) => {
    // The browser itself reports each call of a server that has gone.
    if (message.type() === 'error' && !/net::ERR_/.test(message.text())) page.problems.push(message.text());
  });
  return page;
}

export async function end(browser) {
  await browser?.close();
  for (const child of nodes) child.kill('SIGKILL');
  fs.rmSync(folder, { recursive: true, force: true });
}
