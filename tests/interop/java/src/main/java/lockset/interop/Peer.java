package lockset.interop;

import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.BaseConfig;
import org.redisson.config.Config;
import org.redisson.config.ReadMode;
import org.redisson.config.SubscriptionMode;

/** One Redisson client: its threads, and its lock objects, which know the lease they were last taken for. */
final class Peer {
    private static final Map<String, Peer> CONNECTED = new ConcurrentHashMap<>();

    final RedissonClient redisson;
    private final Map<String, Worker> threads = new ConcurrentHashMap<>();
    private final Map<String, RLock> locks = new ConcurrentHashMap<>();

    private Peer(RedissonClient redisson) {
        this.redisson = redisson;
    }

    /** {@code id peer thread connect url watchdog_ms fair_wait_ms prefix topology}; a prefix of - is none. */
    static Peer connect(String[] words) {
        String url = words[4], prefix = words[7];
        var config = new Config();
        config.setThreads(2).setNettyThreads(2);
        config.setLockWatchdogTimeout(Long.parseLong(words[5]));
        Versions.fairLockWaitTimeout(config, Long.parseLong(words[6]));
        if (words[8].equals("single")) {
            var server = config.useSingleServer().setAddress(url);
            server.setConnectionPoolSize(4).setConnectionMinimumIdleSize(1);
            server.setSubscriptionConnectionPoolSize(1).setSubscriptionConnectionMinimumIdleSize(1);
            common(config, server, prefix);
        } else if (words[8].equals("cluster")) {
            var servers = config.useClusterServers().addNodeAddress(url.split(","));
            servers.setReadMode(ReadMode.MASTER).setSubscriptionMode(SubscriptionMode.MASTER);
            servers.setMasterConnectionPoolSize(4).setMasterConnectionMinimumIdleSize(1);
            servers.setSubscriptionConnectionPoolSize(1).setSubscriptionConnectionMinimumIdleSize(1);
            common(config, servers, prefix);
        } else {
            // How it talks in every mode but the single one, in small.
            var servers = config.useMasterSlaveServers().setMasterAddress(url);
            servers.setReadMode(ReadMode.MASTER).setSubscriptionMode(SubscriptionMode.MASTER);
            servers.setMasterConnectionPoolSize(4).setMasterConnectionMinimumIdleSize(1);
            servers.setSubscriptionConnectionPoolSize(1).setSubscriptionConnectionMinimumIdleSize(1);
            common(config, servers, prefix);
            servers.setTimeout(300).setRetryAttempts(1);
        }
        var peer = new Peer(Redisson.create(config));
        CONNECTED.put(words[1], peer);
        return peer;
    }

    private static void common(Config config, BaseConfig<?> server, String prefix) {
        server.setSubscriptionsPerConnection(50);
        Versions.retryDelay(server, 100);
        if (!prefix.equals("-")) {
            Versions.prefix(config, server, prefix);
        }
    }

    void close() {
        CONNECTED.values().remove(this);
        redisson.shutdown(0, 1, TimeUnit.SECONDS);
    }

    Worker thread(String number) {
        return threads.computeIfAbsent(number, key -> new Worker());
    }

    RLock lock(String kind, String name) {
        return locks.computeIfAbsent(kind + " " + name, key -> make(kind, name));
    }

    private RLock make(String kind, String name) {
        return switch (kind) {
            case "lock" -> redisson.getLock(name);
            case "fenced" -> Versions.fencedLock(redisson, name);
            case "fair" -> redisson.getFairLock(name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            // kind=name,kind=name,...
            case "multi" -> redisson.getMultiLock(Arrays.stream(name.split(","))
                    .map(member -> member.split("=", 2))
                    .map(member -> make(member[0], member[1]))
                    .toArray(RLock[]::new));
            // peer=name,peer=name,...: each on the server of its client
            case "quorum" -> Versions.quorum(Arrays.stream(name.split(","))
                    .map(member -> member.split("=", 2))
                    .map(member -> CONNECTED.get(member[0]).redisson.getLock(member[1]))
                    .toArray(RLock[]::new));
            default -> throw new IllegalArgumentException(kind);
        };
    }
}
