// The page in a real browser, against two real nodes: one cluster for all checks, in order.
import assert from 'node:assert/strict';
import { once } from 'node:events';
import fs from 'node:fs';
import { createRequire } from 'node:module';
import http from 'node:http';
import { after, before, test } from 'node:test';
import { end, model, openPage, startBrowser, startGuest, startNode } from './run.mjs';

const hostile = '<img src=x onerror=alert(1)>';
const axe = createRequire(import.meta.url).resolve('axe-core/axe.min.js');
let browser, kitchen, attic, page;

before(async () => {
  kitchen = await startNode('kitchen');
  attic = await startNode(hostile, kitchen);
  browser = await startBrowser();
});
after(() => end(browser));

// The barriers that axe-core finds. A program that drives a browser may run scripts beside the page's policy.
async function barriers(at) {
  await at.evaluate(fs.readFileSync(axe, 'utf8'));
  return at.evaluate(async () => (await window.axe.run()).violations
    .filter(({ impact }) => impact !== 'minor').map(({ id, nodes }) => `${id}: ${nodes[0].html}`));
}

test('shows the nodes to everybody at loopback, and changes nothing for them', async () => {
  page = await openPage(browser);
  await page.goto(kitchen.http);
  const nodes = page.locator('article.node');
  await nodes.nth(1).waitFor();
  assert.deepEqual((await nodes.locator('h2').allTextContents()).map((t) => t.includes(hostile) || t.includes('kitchen')), [true, true]);
  assert.equal(await page.locator('img[src="x"]').count(), 0);
  assert.equal(await page.getByRole('button', { name: 'Drain' }).count(), 0);
  const refused = await fetch(`${kitchen.http}/api/strata/v1/load`, { method: 'POST', body: JSON.stringify({ model }) });
  assert.equal(refused.status, 401);
  assert.deepEqual(page.problems, []);
});

test('a link from strata page admits once', async () => {
  const link = kitchen.link();
  page = await openPage(browser);
  await page.goto(link);
  await page.getByRole('button', { name: 'Drain' }).first().waitFor();
  assert.ok(!page.url().includes('login'), page.url());
  const other = await openPage(browser);
  await other.goto(link);
  await other.getByText('used already').waitFor();
  assert.equal(await other.getByRole('button', { name: 'Drain' }).count(), 0);
  await other.close();
});

test('plans and loads a model over both nodes', async () => {
  await page.getByRole('link', { name: 'Plan' }).click();
  await page.getByLabel('Model', { exact: true }).fill(model);
  await page.getByLabel('Context').fill('1000');
  await page.getByRole('button', { name: 'Plan', exact: true }).click();
  await page.getByText('Predicted').waitFor({ timeout: 60000 }); // the nodes measure first
  await page.getByRole('button', { name: 'Load by this plan' }).click();
  await page.locator('p.note', { hasText: ' is loaded.' }).waitFor({ timeout: 60000 });
  await page.getByRole('link', { name: 'Models' }).click();
  await page.getByText('serving').first().waitFor();
  assert.ok((await page.locator('tbody tr').count()) >= 1);
});

test('chats, and keeps the conversation', async () => {
  await page.getByRole('link', { name: 'Chat', exact: true }).first().click();
  await page.waitForFunction(() => document.querySelector('.talk select')?.value);
  await page.getByText('Settings').click();
  await page.getByLabel('Most tokens').fill('40');
  await page.getByLabel('Seed').fill('1');
  await page.getByLabel('Message').fill(`${hostile} The old captain`);
  await page.keyboard.press('Enter');
  await page.getByText(/tokens\/s, first token after/).waitFor({ timeout: 60000 });
  await page.getByRole('button', { name: 'Ask again' }).waitFor({ timeout: 60000 }); // it is complete
  assert.ok((await page.locator('.message.assistant .markdown').innerText()).length > 0);
  assert.equal(await page.locator('img[src="x"]').count(), 0);
  await page.reload();
  await page.locator('.message.assistant').waitFor();
});

const show = (view) => page.getByRole('navigation').getByRole('link', { name: view }).click();
const loaded = async () => (await (await fetch(`${kitchen.http}/api/strata/v1/models`)).json()).models[0];

test('drains a node, which takes layers again when it is told', async () => {
  await show('Cluster');
  const card = page.getByRole('article', { name: 'kitchen' });
  await card.getByRole('button', { name: 'Drain' }).click();
  await page.getByText('kitchen has no layers any more.').waitFor({ timeout: 60000 });
  assert.deepEqual((await loaded()).stages.map((stage) => stage.node), [hostile]);
  await card.getByRole('button', { name: 'Take layers again' }).click();
  await page.getByText('kitchen takes layers again').waitFor();
});

test('an answer goes on when the node that computes it is killed', async () => {
  await show('Chat');
  await page.getByRole('button', { name: 'New' }).click();
  await page.waitForFunction(() => document.querySelector('.talk select')?.value);
  await page.getByText('Settings').click();
  await page.getByLabel('JSON Schema').fill(JSON.stringify({ type: 'array', minItems: 140, maxItems: 140, items: { const: 'sea' } }));
  await page.getByLabel('Message').fill('The old captain');
  await page.keyboard.press('Enter');
  for (let tries = 1; ; tries += 1) {
    await page.locator('.message.assistant').getByText('sea').first().waitFor();
    const words = await page.locator('.message.assistant').last().evaluate((element) => element.textContent.split('sea').length - 1);
    if (words < 90) break; // in the middle of the answer
    assert.ok(tries < 20, 'the answer is always there at once');
    await page.getByRole('button', { name: 'Ask again' }).click();
  }
  await attic.stop('SIGKILL');
  await page.getByRole('button', { name: 'Ask again' }).waitFor({ timeout: 60000 });
  const [{ messages }] = JSON.parse(await page.evaluate(() => localStorage.getItem('strata-conversations')));
  assert.deepEqual(JSON.parse(messages.at(-1).content), Array(140).fill('sea'));
  assert.deepEqual((await loaded()).stages.map((stage) => stage.node), ['kitchen']);
  attic = await startNode(hostile, kitchen, { dir: attic.dir });
});

test('says what is wrong, with what to do', async () => {
  await show('Cluster');
  await page.getByRole('button', { name: 'Examine' }).click();
  const doctor = page.getByRole('region', { name: 'Doctor' });
  await doctor.locator('li, .good').first().waitFor({ timeout: 60000 });
  assert.deepEqual(await barriers(page), []);
});

test('admits a node once both show the same digits', async () => {
  const cellar = await startGuest('cellar', kitchen);
  await show('Access');
  await page.getByLabel('Address of a node').fill(cellar.address);
  await page.getByRole('button', { name: 'Approve', exact: true }).click();
  assert.equal(await page.locator('.code').innerText(), await cellar.code);
  await page.getByRole('button', { name: 'It shows the same' }).click();
  await page.getByText('is admitted').waitFor({ timeout: 20000 });
  await page.getByRole('button', { name: 'Remove cellar' }).waitFor({ timeout: 20000 });
});

test('makes a token, shows it once, and revokes it', async () => {
  await page.getByLabel('Who or what will use it').fill('radio');
  await page.getByLabel('view: see the cluster').check();
  await page.getByRole('button', { name: 'New token' }).click();
  const token = await page.locator('code').innerText();
  assert.match(token, /^strata-token-/);
  await page.reload();
  await page.getByRole('button', { name: 'Revoke radio' }).click();
  await page.getByText('of radio is revoked').waitFor();
  assert.ok(!(await page.content()).includes(token));
  await page.getByRole('button', { name: 'Revoke radio' }).waitFor({ state: 'detached' });
});

for (const view of ['Cluster', 'Models', 'Plan', 'Access', 'Chat']) {
  test(`${view} keeps nobody out, on a phone neither`, async () => {
    await show(view);
    await page.locator('main h1').waitFor({ state: 'attached' });
    assert.deepEqual(await barriers(page), []);
    await page.setViewportSize({ width: 390, height: 844 });
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 390));
    await page.setViewportSize({ width: 1200, height: 900 });
  });
}

test('shows fifty nodes, on a phone too', async () => {
  const phone = await openPage(browser, { viewport: { width: 390, height: 844 } });
  const one = (await (await fetch(`${kitchen.http}/api/strata/v1/cluster`)).json()).nodes[0];
  const nodes = Array.from({ length: 50 }, (_, i) => ({ ...one, id: `${i}`, name: `node-${i}` }));
  for (const node of nodes) {
    node.links = Object.fromEntries(nodes.map(({ id }) => [id, { round_trip_p50_us: 200, round_trip_p99_us: 400, bytes_per_s: 1e8 }]));
  }
  const cluster = JSON.stringify({ cluster: 'home', coordinator: '0', epoch: 1, nodes, problems: [] });
  await phone.route('**/api/strata/v1/events', (route) => route.fulfill({
    contentType: 'text/event-stream', body: `event: cluster\ndata: ${cluster}\n\n`,
  }));
  await phone.goto(kitchen.http);
  await phone.locator('article.node').nth(49).waitFor();
  assert.ok(await phone.evaluate(() => document.documentElement.scrollWidth <= 390));
  assert.deepEqual(phone.problems, []);
  await phone.close();
});

test('goes on when the node was gone and is back', async () => {
  await show('Cluster');
  await kitchen.stop('SIGKILL');
  await page.getByText('no answer').waitFor();
  kitchen = await startNode('kitchen', attic, { dir: kitchen.dir, http: kitchen.httpPort });
  await page.getByText('live', { exact: true }).waitFor({ timeout: 60000 });
  await page.locator('article.node').nth(1).waitFor();
});

test('unloads, and no step has left an error', async () => {
  await show('Models');
  await page.getByRole('button', { name: 'Unload' }).click({ timeout: 60000 });
  await page.getByText('was unloaded').first().waitFor({ timeout: 60000 });
  assert.deepEqual(page.problems, []);
});

// A web server that has the model; resolves with the address of its file.
async function startHub() {
  const bytes = fs.readFileSync(model);
  const hub = http.createServer((request, response) => {
    const range = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range || '');
    const [begin, last] = [Number(range?.[1] || 0), Math.min(Number(range?.[2] || bytes.length), bytes.length - 1)];
    const headers = { 'Content-Length': last - begin + 1, ETag: '"demo"', 'Accept-Ranges': 'bytes' };
    if (range) headers['Content-Range'] = `bytes ${begin}-${last}/${bytes.length}`;
    response.writeHead(range ? 206 : 200, headers);
    response.end(bytes.subarray(begin, last + 1));
  }).listen(0, '127.0.0.1');
  await once(hub, 'listening');
  hub.unref();
  return `http://127.0.0.1:${hub.address().port}/fetched.gguf`;
}

test('fetches a model, gives it a name, loads it to stay a while, and deletes it', async () => {
  await show('Models');
  await page.getByLabel('A short name').fill(await startHub());
  await page.getByRole('button', { name: 'Fetch', exact: true }).click();
  await page.getByText('is on this node.').waitFor({ timeout: 20000 });
  const row = page.locator('tr', { hasText: 'fetched' });
  await row.waitFor({ timeout: 20000 });
  const { models } = await (await fetch(`${kitchen.http}/api/strata/v1/files`)).json();
  const { path } = models.find(({ name }) => name.includes('fetched'));

  await page.getByLabel('New name').fill('old-captain');
  await page.getByLabel('Stands for').fill(path);
  await page.getByRole('button', { name: 'Set', exact: true }).click();
  await page.getByRole('button', { name: 'Delete old-captain' }).click();
  await page.getByText('is no other name any more').waitFor();

  await page.getByLabel('Unload after').fill('90');
  await page.getByLabel('Pinned').check();
  await row.getByRole('button', { name: 'Load' }).click();
  const card = page.getByRole('article', { name: 'Strata demo' });
  await card.getByText('5400 s without a request').waitFor({ timeout: 60000 });
  await card.getByText('pinned').waitFor();
  await row.getByText('loaded').waitFor();
  assert.equal(await row.getByRole('button', { name: 'Delete' }).count(), 0);
  await card.getByRole('button', { name: 'Unload' }).click();
  await card.waitFor({ state: 'detached', timeout: 60000 });
  await row.getByRole('button', { name: 'Delete' }).click();
  await page.getByText('are free again').waitFor();
  assert.ok(!fs.existsSync(path));
});

test('removes a node', async () => {
  await show('Access');
  await page.getByRole('button', { name: 'Remove cellar' }).click();
  await page.getByText('cellar is removed.').waitFor({ timeout: 60000 });
  assert.deepEqual(page.problems, []);
});

const ask = (path, headers, method = 'GET') => new Promise((resolve, reject) => {
  const request = http.request(`${kitchen.http}${path}`, { method, headers }, (response) => {
    response.resume();
    resolve(response);
  });
  request.on('error', reject);
  request.end();
});

test('is not for other sites', async () => {
  assert.equal((await ask('/', { host: 'rebound.example' })).statusCode, 403);
  assert.equal((await ask('/api/strata/v1/cluster', { 'sec-fetch-site': 'cross-site' })).statusCode, 403);
  assert.equal((await ask('/api/strata/v1/cluster', { origin: 'https://evil.example' })).statusCode, 403);
  const policy = (await ask('/', { 'accept-encoding': 'gzip' })).headers['content-security-policy'];
  assert.match(policy, /script-src 'self';.*frame-ancestors 'none'/);
});
