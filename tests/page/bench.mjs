// The processor time of open pages: of one in a browser, and of many that watch, idle and beside streams.
import fs from 'node:fs';
import http from 'node:http';
import { setTimeout as pause } from 'node:timers/promises';
import { end, model, openPage, startBrowser, startNode } from './run.mjs';

const [seconds, watchers, streams] = process.argv.slice(2).map(Number);
const ticks_per_s = 100; // as /proc counts on all of Linux's architectures
let kitchen, browser;

const statOf = (pid) => {
  try {
    return fs.readFileSync(`/proc/${pid}/stat`, 'utf8');
  } catch {
    return ''; // it has ended
  }
};
const fields = (pid) => statOf(pid).replace(/^.*\) /, '').split(' ');
const processorOf = (pid) => (Number(fields(pid)[11]) + Number(fields(pid)[12])) / ticks_per_s || 0;

// The browser's processes are children of this one, and their children.
function browserPids() {
  const pids = fs.readdirSync('/proc').filter((name) => /^\d+$/.test(name));
  const parents = new Map(pids.map((pid) => [pid, fields(pid)[1]]));
  const isOurs = (pid) => pid !== undefined && (pid === String(process.pid) || isOurs(parents.get(pid)));
  return pids.filter((pid) => isOurs(pid) && /\((chrom|headless)/.test(statOf(pid)));
}
const ofBrowser = () => browserPids().reduce((sum, pid) => sum + processorOf(pid), 0);
const ofNode = () => processorOf(kitchen.child.pid);

// Percent of a core that each takes.
async function take(times) {
  const before = times.map((time) => time());
  const began = performance.now();
  await pause(1000 * seconds);
  const passed = (performance.now() - began) / 1000;
  return times.map((time, i) => (100 * (time() - before[i])) / passed);
}

// A page that watches; returns { bytes, end }.
function watch() {
  const watcher = { bytes: 0 };
  const request = http.get(`${kitchen.http}/api/strata/v1/events`, { agent: false }, (response) => {
    response.on('data', (data) => { watcher.bytes += data.length; });
    response.on('error', () => {});
  });
  request.on('error', () => {});
  watcher.end = () => request.destroy();
  return watcher;
}

// Streams, one after another, until `signal`; `count` is called for each token.
async function stream(name, count, signal) {
  const body = JSON.stringify({ model: name, prompt: 'The old captain', max_tokens: 400, ignore_eos: true, stream: true });
  while (!signal.aborted) {
    try {
      const response = await fetch(`${kitchen.http}/v1/completions`, { method: 'POST', body, signal });
      for await (const bytes of response.body) count(Buffer.from(bytes).toString().split('data: {').length - 1);
    } catch (error) {
      if (!signal.aborted) throw error;
    }
  }
}

async function takeWithStreams(name) {
  const stop = new AbortController();
  let tokens = 0;
  const running = Array.from({ length: streams }, () => stream(name, (n) => { tokens += n; }, stop.signal));
  await pause(2000);
  tokens = 0;
  const [node] = await take([ofNode]);
  const rate = tokens / seconds;
  stop.abort();
  await Promise.all(running);
  return { node, rate };
}

const say = (what, ...values) => console.log(`| ${what} | ${values.join(' | ')} |`);
const percent = (n) => `${n.toFixed(2)} %`;

try {
  kitchen = await startNode('kitchen');
  await startNode('attic', kitchen);
  browser = await startBrowser();
  const page = await openPage(browser);
  await page.goto(kitchen.link());
  await page.locator('article.node').nth(1).waitFor();
  const body = { model, ctx: 512, seqs: streams };
  const name = await page.evaluate(async (wanted) => {
    const headers = { Authorization: `Bearer ${sessionStorage.getItem('strata-token')}` };
    const response = await fetch('/api/strata/v1/load', { method: 'POST', body: JSON.stringify(wanted), headers });
    return JSON.parse(/event: done\ndata: (.*)/.exec(await response.text())[1]).model;
  }, body);
  await page.goto('about:blank');
  await pause(8000); // what is measured at the start has been

  say('', 'node', 'browser', 'tokens/s');
  say('---', '---', '---', '---');
  say('no page', percent((await take([ofNode]))[0]), '', '');
  await page.goto(`${kitchen.http}/#cluster`);
  await page.locator('article.node').nth(1).waitFor();
  await pause(2000);
  const [node, chromium] = await take([ofNode, ofBrowser]);
  say('one page, idle', percent(node), percent(chromium), '');
  await page.goto('about:blank');

  let open = Array.from({ length: watchers }, watch);
  await pause(2000);
  open.forEach((watcher) => { watcher.bytes = 0; });
  say(`${watchers} watch, idle`, percent((await take([ofNode]))[0]), '', '');
  say('bytes a second to each', (open[0].bytes / seconds).toFixed(0), '', '');
  open.forEach((watcher) => watcher.end());

  // In turn, as the machine's other work changes.
  const sums = { without: [0, 0], with: [0, 0] };
  const rounds = 3;
  for (let round = 0; round < rounds; round += 1) {
    for (const each of ['without', 'with']) {
      open = each === 'with' ? Array.from({ length: watchers }, watch) : [];
      const taken = await takeWithStreams(name);
      sums[each][0] += taken.node / rounds;
      sums[each][1] += taken.rate / rounds;
      open.forEach((watcher) => watcher.end());
    }
  }
  say(`${streams} streams`, percent(sums.without[0]), '', sums.without[1].toFixed(0));
  say(`${streams} streams, ${watchers} watch`, percent(sums.with[0]), '', sums.with[1].toFixed(0));
} finally {
  await end(browser);
}
